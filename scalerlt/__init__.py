"""ScaleRLT: an experiment harness for reinforcement learning of recurrent looped language models."""

__version__ = "0.1.0"
