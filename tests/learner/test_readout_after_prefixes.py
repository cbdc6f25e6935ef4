"""A tiled readout under the schedules that share prefixes: the gradients of whole sequences and the full readout."""

from dataclasses import replace

import learner.test_readout as plain
import pytest

from scalerlt.learner.checkpoint import NoCheckpoint
from scalerlt.learner.prefix import JointPrefix, SharedPrefix, StreamedPrefix
from scalerlt.learner.readout import FullReadout, TiledReadout


@pytest.mark.parametrize("schedule", [SharedPrefix, JointPrefix, StreamedPrefix])
@pytest.mark.parametrize(
    ("objective", "kind"),
    [(plain.GRPO, "dense"), (plain.GRPO, "replay"), (plain.GRPO, "hybrid"), (plain.RLTT, "dense")],
)
def test_an_actor_update_is_the_same(monkeypatch: pytest.MonkeyPatch, objective, kind: str, schedule):
    ragged = plain.answers
    monkeypatch.setattr(plain, "answers", lambda depths: [replace(r, prompt_tokens=[3, 5, 7]) for r in ragged(depths)])
    loss, expected = plain.update(FullReadout(), objective=objective, kind=kind, schedule=NoCheckpoint())
    found_loss, found = plain.update(TiledReadout(5), objective=objective, kind=kind, schedule=schedule(2), tokens=14)
    assert found_loss == pytest.approx(loss, abs=1e-12)
    for name, gradient in expected.items():
        assert float((found[name] - gradient).abs().max()) < 1e-12
