"""Simpler models to hold a fine-tuned one against."""
