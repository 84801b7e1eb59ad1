"""Where the figures of a run can go, a file each: a listener (`train.tracking.RunListener`) called `TRACKER`."""
