"""The optimizers: one file each, whose `OPTIMIZER` is found by the name of the file."""
