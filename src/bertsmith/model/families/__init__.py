"""The families: one file each, named after its paper and holding all that only this family knows.

`bertsmith.model.family` finds the files by itself: a new family is a file here that defines `FAMILY`.
"""
