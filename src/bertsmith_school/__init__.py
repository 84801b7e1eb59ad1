"""bertsmith's school: lessons, a lab in the browser, studies of the paper's tables, and looks inside a model.

It stands on the public interface of `bertsmith` alone, so that it shows each day that this interface is enough to build
such things on. Its commands come to `bertsmith` through the entry point `bertsmith.commands`, as anybody's would.
"""

RUN_COLOURS = ("#1f4e8c", "#c4622d", "#2f7d4f", "#8a4fa3", "#a08a1f", "#4a4a4a")
REFERENCE_COLOUR = "#b04a3a"
"""Of plots: the curves of several runs, and what they are compared with; those of the toolkit's reports."""
