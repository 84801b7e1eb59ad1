"""Metrics, and how far they can be trusted."""
