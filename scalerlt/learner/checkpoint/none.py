"""`checkpoint=none`: the whole graph is kept."""

from scalerlt.models.ouro import DirectSchedule


class NoCheckpoint(DirectSchedule):
    """Everything is computed once."""
