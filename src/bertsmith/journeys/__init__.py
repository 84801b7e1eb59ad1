"""Whole ways from a text or a model to another model, a file each: what `bertsmith quickstart` and others do."""
