"""Everything that exists only because of a processor."""
