"""One process per cell, and one record whatever happens to it.

The supervisor (never imports torch) starts the child, watches it and writes the record; the child imports torch, runs
the experiment and notes what it measures.
"""
