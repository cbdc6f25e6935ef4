"""Training on shared prefixes: the prompt of several responses is run once, whatever their number."""

from scalerlt.learner.prefix.packed import PackedPrefix
from scalerlt.learner.prefix.schedules import JointPrefix, SharedPrefix, StreamedPrefix

__all__ = ["JointPrefix", "PackedPrefix", "SharedPrefix", "StreamedPrefix"]
