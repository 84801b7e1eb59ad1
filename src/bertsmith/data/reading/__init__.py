"""Files on disk to documents of sentences."""
