"""Mirrors: what an attempt leaves on disk, shown by Weights & Biases or TensorBoard as well.

A mirror is a process of its own (`python -m scalerlt.tracking ATTEMPT`) that reads the attempt's files and writes to
`attempt-NNN/mirrors/` alone: whatever becomes of it, the cell, its record and every table stay the same.
"""
