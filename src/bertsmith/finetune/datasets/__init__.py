"""Readers of labelled files."""
