"""Clocks, memory, gradient errors and the environment. Gets tensors and callables, knows no model."""
