"""The deterministic, resumable, elastic order of training batches."""
