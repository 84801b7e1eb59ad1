"""Diagrams of the lessons, drawn as SVG from the numbers of their computations; see `bertsmith.learn.picture`."""
