"""Training: the loop, the optimizer, the crash-safe state and the figures of a run."""
