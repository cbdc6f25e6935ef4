"""`experiment=readout`: what log-probs of hidden states cost, by readout."""

from typing import Literal

from scalerlt.schema.experiment import RepeatedExperiment
from scalerlt.schema.fields import PositiveInt
from scalerlt.schema.registry import config_group


@config_group("experiment", "readout")
class Readout(RepeatedExperiment):
    """Reads log-probs out of random hidden states by a random output head, and differentiates them.

    Attributes:
        rows: hidden states.
        vocabulary: rows of the output head.
        width: of a hidden state.
        readout, tile: as `checkpoint.readout` and `checkpoint.readout_tile`.
    """

    rows: PositiveInt
    vocabulary: PositiveInt
    width: PositiveInt
    readout: Literal["full", "tiled"]
    tile: PositiveInt
