"""Activation checkpoint schedules: what autograd keeps of a forward pass and what is computed again.

A schedule has the two methods of `scalerlt.models.ouro.Schedule`: `layer`, through which the model calls every
physical layer in every loop, and `loop`, through which it calls every whole loop. The model has no dropout and draws
no random numbers, so no random state is kept for the second run.
"""

from scalerlt.learner.checkpoint.layer import LayerCheckpoint
from scalerlt.learner.checkpoint.loop import LoopCheckpoint
from scalerlt.learner.checkpoint.none import NoCheckpoint

__all__ = ["LayerCheckpoint", "LoopCheckpoint", "NoCheckpoint"]
