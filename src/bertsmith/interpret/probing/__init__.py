"""Probes: what a model knows, measured without training it: of grammar, in which layer, and of the village's facts."""

from bertsmith.interpret.probing.run import Probes, probe

__all__ = ["Probes", "probe"]
