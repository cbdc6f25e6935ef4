"""Activation checkpoint schedules over whole sequences: what autograd keeps of a forward pass, what is computed again.

`Schedule` says how the loops over packed rows (`learner/rows.py`) are executed. Schedules that share the prompt of
several responses are layouts of a step of their own: `learner/prefix/`.
"""

from scalerlt.learner.checkpoint.schedule import NoCheckpoint
from scalerlt.learner.checkpoint.segments import LayerCheckpoint, LoopCheckpoint, Segments

__all__ = ["LayerCheckpoint", "LoopCheckpoint", "NoCheckpoint", "Segments"]
