"""What a rollout owes to its company, counted by the experiment itself."""

from dataclasses import replace
from pathlib import Path

import pytest
from experiments.test_rollout_throughput import make_cell, measure

from scalerlt.experiments import rollout_batch
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.stats import RolloutResult

VALUES = {"experiment.company": True, "experiment.memory": False, "experiment.repeats": 1}


def test_no_bit_with_deterministic_and_some_without(tmp_path: Path) -> None:
    for deterministic in (True, False):
        cell = make_cell(VALUES | {"rollout.deterministic": deterministic})
        directory = tmp_path / str(deterministic)
        directory.mkdir()
        metrics, _ = measure(cell, directory)
        assert metrics["company_tokens"].value == metrics["generated_tokens"].value
        assert metrics["company_near_ties"].value == 0
        if deterministic:
            assert metrics["company_mismatches"].value == metrics["company_largest_difference"].value == 0
        else:
            assert 0 < metrics["company_mismatches"].value <= metrics["company_tokens"].value
            assert 0 < metrics["company_largest_difference"].value < 2e-6


def test_another_token_is_counted_and_ends_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Otherwise(NativeEngine):
        def generate(self, requests) -> RolloutResult:
            result = super().generate(requests)
            if requests[0].request_id == "0.0":
                return result
            first = result.responses[0]
            changed = (first.tokens[0], *((token + 1) % 500 for token in first.tokens[1:]))
            result.responses[0] = replace(first, tokens=changed)
            return result

    def build_engine(cell: object, model: OuroForCausalLM, *, concurrency: int, **options: object) -> NativeEngine:
        return Otherwise(model, concurrency=concurrency, **options)

    monkeypatch.setattr(rollout_batch, "build_engine", build_engine)
    metrics, _ = measure(make_cell(VALUES), tmp_path)
    assert metrics["company_near_ties"].value == 1
    assert metrics["company_tokens"].value < metrics["generated_tokens"].value
