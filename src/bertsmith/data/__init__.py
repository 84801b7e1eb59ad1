"""From text files to batches."""
