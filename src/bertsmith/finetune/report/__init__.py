"""What a run leaves for people to read: report, plots, model card."""
