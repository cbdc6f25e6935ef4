"""`experiment=rollout_throughput`: how fast the engine generates, in how much memory, and whether it is right.

One rollout batch is `batch.prompts_per_step` prompts with `batch.group_size` responses each. Its log-probs are compared
with the learner's over the same tokens and exit depths, in the same precision and in fp64.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from scalerlt.experiments.building import build_model, device_of
from scalerlt.experiments.inputs import repeats
from scalerlt.experiments.io_metrics import record_bandwidth, record_share, record_traffic
from scalerlt.experiments.memory_metrics import record_memory, record_no_memory, record_parts
from scalerlt.experiments.requests import requests_of
from scalerlt.experiments.rollout_batch import RolloutBatch
from scalerlt.experiments.rollout_company import measure_company
from scalerlt.experiments.rollout_replay import largest_difference, measure_replay
from scalerlt.experiments.rollout_work import record_coda, record_work
from scalerlt.measure.breakdown import Standing, break_down
from scalerlt.measure.clock import PhaseTimer, Stopwatch, synchronizer, timed
from scalerlt.measure.memory import measure_memory
from scalerlt.numerics.precision import matrix_path, number_format
from scalerlt.records.recorder import Recorder
from scalerlt.rollout.request import Response
from scalerlt.rollout.stats import RolloutResult
from scalerlt.rollout.traffic import rollout_traffic
from scalerlt.schema import Cell
from scalerlt.schema.experiment.rollout_throughput import RolloutThroughput


def run(cell: Cell, recorder: Recorder) -> None:
    """Measure the rollout of one batch."""
    experiment = cell.experiment
    assert isinstance(experiment, RolloutThroughput)
    with recorder.phase("load"):
        requests = requests_of(cell)
        batch = RolloutBatch(cell, build_model(cell, number_format(cell.precision.name).dtype), requests)
        batch.start()
    native = matrix_path(cell.precision.name, device_of(cell))
    recorder.metric("matrix_path", native, method="torch multiplies matrices of this format on this device")
    result, seconds = _measure_time(batch, recorder)
    record_work(recorder, batch, result, seconds)
    with recorder.measuring("coda"):
        record_coda(recorder, batch, result)
    if experiment.replay:
        measure_replay(recorder, batch, result.responses)
    if experiment.company:
        measure_company(recorder, batch, result.responses)
    _measure_memory(batch, recorder)
    traffic = rollout_traffic(batch.model, result.stats)
    record_traffic(recorder, "generated", [traffic], result.stats.generated_tokens)
    bandwidth = record_bandwidth(recorder, device_of(cell))
    record_share(recorder, traffic.total, seconds, bandwidth, scope="rollout")
    with recorder.measuring("reference"):
        first = experiment.reference_requests or len(requests)
        _compare_logprobs(recorder, replace(batch, requests=requests[:first]), result.responses[:first])


def _measure_time(batch: RolloutBatch, recorder: Recorder) -> tuple[RolloutResult, list[float]]:
    """The first repeat's result, and the seconds of each."""
    synchronize = synchronizer(device_of(batch.cell))
    warmup, measured = repeats(batch.cell).warmup, repeats(batch.cell).repeats
    with recorder.measuring("warm_up"):
        warm_up = timed(batch.generate, synchronize=synchronize, repeats=warmup)
    results: list[RolloutResult] = []
    with recorder.measuring("time"):
        seconds = timed(lambda: results.append(batch.generate()), synchronize=synchronize, repeats=measured)
    timer = PhaseTimer(synchronize)
    phases: list[dict[str, float]] = []
    first_tokens: list[list[float]] = []
    with recorder.measuring("phases"):
        for _ in range(measured):
            watch = Stopwatch(synchronize)
            batch.generate(timer.phase, watch.lap)
            phases.append(timer.take())
            first_tokens.append(watch.laps)

    if any(result.responses != results[0].responses for result in results):
        recorder.note("the repeats of the same requests did not generate the same tokens and log-probs")
    stats = results[0].stats
    recorder.metric("warm_up_steps", len(warm_up))
    if warm_up:
        recorder.repeated("warm_up_seconds", warm_up, "s", scope="rollout")
    recorder.repeated("rollout_seconds", seconds, "s", scope="rollout")
    recorder.repeated(
        "tokens_per_second", [stats.generated_tokens / second for second in seconds], "token/s", scope="rollout"
    )
    for name in ("prefill", "decode"):
        recorder.repeated(f"{name}_seconds", [taken.get(name, 0.0) for taken in phases], "s", scope=name)
    decoded = stats.generated_tokens - len(results[0].responses) - stats.mixed_tokens
    if decoded:
        rates = [decoded / taken["decode"] for taken in phases]
        recorder.repeated("decode_tokens_per_second", rates, "token/s", scope="decode")
    else:
        reason = "every response has one token, which comes of its prefill"
        if stats.mixed_tokens:
            reason = "every token was decoded beside prompts"
        recorder.not_measured("decode_tokens_per_second", reason)
    _record_first_tokens(recorder, first_tokens)
    return results[0], seconds


def _record_first_tokens(recorder: Recorder, seconds: list[list[float]]) -> None:
    """Of each repeat the seconds until each request had its first token."""
    method = "of each request, from the start of the whole batch, waiting for a slot included; in the pass `phases`"
    name = "time_to_first_token_seconds"
    means = [sum(each) / len(each) for each in seconds]
    recorder.repeated(name, means, "s", scope="rollout", method=f"mean {method}")
    recorder.repeated(f"{name}/largest", list(map(max, seconds)), "s", scope="rollout", method=f"largest {method}")


def _measure_memory(batch: RolloutBatch, recorder: Recorder) -> None:
    assert isinstance(batch.cell.experiment, RolloutThroughput)
    if not batch.cell.experiment.memory:
        record_no_memory(recorder, "the cell has experiment.memory=false")
        return
    if batch.cell.rollout.engine.name == "vllm":
        record_no_memory(recorder, "vLLM takes its memory, kv_cache_bytes among it, before the first request")
        return
    device, model = device_of(batch.cell), batch.model
    with recorder.measuring("memory"):
        report = measure_memory(batch.generate, device=device, parameters=model.parameters())
        standing = Standing(weights=tuple(model.parameters()), heads=(model.lm_head.weight,))
        parts = break_down(batch.generate, device=device, standing=standing)
    record_memory(recorder, report)
    weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
    record_parts(recorder, report, parts, standing_bytes=weight_bytes)


def _compare_logprobs(recorder: Recorder, batch: RolloutBatch, responses: Sequence[Response]) -> None:
    """Largest |difference| between the rollout's log-probs and the learner's over the same tokens and depths.

    Where the learner has no pass over all positions that is the same policy, the engine's own steps in fp64 are the
    reference.
    """
    theirs = [batch.logprobs_of(response) for response in responses]
    compared = f"max over the tokens of {len(responses)} responses"
    if batch.packed_fault is not None:
        recorder.unsupported("logprob_error_learner", batch.packed_fault, "nat")
        batch.model.to(torch.float64)
        again = batch.forced(responses).generate().responses
        error = largest_difference([batch.logprobs_of(response) for response in again], theirs)
        method = f"{compared}, against the engine's own steps over the same tokens and depths in fp64, same weights"
        recorder.metric("logprob_error_fp64", error, "nat", method=method)
        return
    method = f"{compared}, against {batch.packed_kind} log-probs"
    error = largest_difference(batch.packed(responses), theirs)
    recorder.metric("logprob_error_learner", error, "nat", method=f"{method} in the same precision")
    batch.model.to(torch.float64)
    error = largest_difference(batch.packed(responses), theirs)
    recorder.metric("logprob_error_fp64", error, "nat", method=f"{method} in fp64, same weights")
