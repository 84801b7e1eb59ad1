"""Pages, plots and fonts that every room draws with."""
