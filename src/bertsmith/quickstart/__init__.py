"""The main job in one command; see `journey`."""

from bertsmith.quickstart.journey import QuickstartOptions, quickstart
from bertsmith.quickstart.showcase import QuickstartResult

__all__ = ["QuickstartOptions", "QuickstartResult", "quickstart"]
