"""`experiment=published_fixtures`: what shared prefixes run and keep on the published fixture, by our own counting."""

from typing import TYPE_CHECKING, Literal

from scalerlt.schema.experiment import Experiment
from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine

COUNTED = ("prefix", "joint", "streamed")


@config_group("experiment", "published_fixtures")
class PublishedFixtures(Experiment):
    """Counts one quantity of a learner step: a prompt of 4 tokens, responses of 1, 3 and 5.

    Attributes:
        quantity: `token_calls`: rows that go through a layer. `boundary_bytes`: of what the prompt hands to its
            responses. `prompt_saved_bytes`: kept for the backward pass of the prompt. `wave_saved_bytes_least` and
            `_most`: the same of a wave, over all waves of 1, 2 and 3 responses.
    """

    quantity: Literal[
        "token_calls", "boundary_bytes", "prompt_saved_bytes", "wave_saved_bytes_least", "wave_saved_bytes_most"
    ]

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Why the quantity cannot be counted of the cell's schedule, or None."""
        if cell.checkpoint.name not in COUNTED:
            return (
                f"experiment=published_fixtures counts waves of shared prefixes; use checkpoint={' or '.join(COUNTED)}"
            )
        if cell.checkpoint.name == "streamed" and self.quantity != "token_calls":
            return "checkpoint=streamed has two passes of a prompt, and is counted in token_calls alone"
        if cell.device.type != "cpu":
            return "experiment=published_fixtures counts what autograd keeps on a CPU; use device=cpu"
        return None
