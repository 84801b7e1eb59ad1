"""The families: a file for each that has modules of its own; one that defines a `Family` is found by itself."""
