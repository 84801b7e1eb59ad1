"""The computations of the lessons: one file per idea, one registry to call them by name."""

from bertsmith.learn.computations.registry import COMPUTATIONS, compute, picture

__all__ = ["COMPUTATIONS", "compute", "picture"]
