"""The lab: looking inside models in the browser, everything on this machine."""
