"""A plan is run: the local queue, its locks, its recovery from what was left half done, its display, and the status."""
