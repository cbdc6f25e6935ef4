"""`experiment=rollout_throughput`: how fast the engine generates, in how much memory, and whether it is right.

One rollout batch is `batch.prompts_per_step` prompts with `batch.group_size` responses each. Its log-probs are compared
with the learner's over the same tokens and exit depths, in the same precision and in fp64.
"""

from collections.abc import Callable, Sequence
from pkgutil import resolve_name

import torch

from scalerlt.experiments.building import build_model, device_of, exit_rule
from scalerlt.experiments.inputs import repeats
from scalerlt.experiments.io_metrics import record_bandwidth, record_share, record_traffic
from scalerlt.experiments.memory_metrics import record_memory, record_parts
from scalerlt.experiments.requests import requests_of
from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.logprobs import LogprobKind, response_logprobs
from scalerlt.measure.breakdown import Standing, break_down
from scalerlt.measure.clock import PhaseTimer, synchronizer, timed
from scalerlt.measure.memory import OnPhase, measure_memory
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.numerics.precision import matrix_path, number_format
from scalerlt.records.recorder import Recorder
from scalerlt.rollout.native import RolloutResult
from scalerlt.rollout.request import Request, Response
from scalerlt.rollout.traffic import rollout_traffic
from scalerlt.schema import Cell

Rollout = Callable[[OnPhase | None], RolloutResult]


def run(cell: Cell, recorder: Recorder) -> None:
    """Measure the rollout of one batch."""
    with recorder.phase("load"):
        requests = requests_of(cell)
        model = build_model(cell, number_format(cell.precision.name).dtype)
    native = matrix_path(cell.precision.name, device_of(cell))
    recorder.metric("matrix_path", native, method="torch multiplies matrices of this format on this device")
    engine = resolve_name(cell.rollout.engine.target)
    rule = exit_rule(cell)
    concurrency = min(cell.batch.rollout_concurrency, len(requests))

    def rollout(on_phase: OnPhase | None = None) -> RolloutResult:
        result: RolloutResult = engine(
            model,
            concurrency=concurrency,
            on_phase=on_phase,
            exit_rule=rule,
            shared_prefill=cell.rollout.engine.shared_prefill,
        ).generate(requests)
        return result

    result, seconds = _measure_time(cell, recorder, rollout)
    _record_work(recorder, result)
    with recorder.measuring("memory"):
        report = measure_memory(rollout, device=device_of(cell), parameters=model.parameters())
        standing = Standing(weights=tuple(model.parameters()), heads=(model.lm_head.weight,))
        parts = break_down(rollout, device=device_of(cell), standing=standing)
    record_memory(recorder, report)
    weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
    record_parts(recorder, report, parts, standing_bytes=weight_bytes)
    traffic = rollout_traffic(model, result.stats)
    record_traffic(recorder, "generated", [traffic], result.stats.generated_tokens)
    bandwidth = record_bandwidth(recorder, device_of(cell))
    record_share(recorder, traffic.total, seconds, bandwidth, scope="rollout")
    with recorder.measuring("reference"):
        _compare_logprobs(cell, recorder, model, requests, result.responses)


def _measure_time(cell: Cell, recorder: Recorder, rollout: Rollout) -> tuple[RolloutResult, list[float]]:
    """The first repeat's result, and the seconds of each."""
    synchronize = synchronizer(device_of(cell))
    with recorder.measuring("warm_up"):
        warm_up = timed(lambda: rollout(None), synchronize=synchronize, repeats=repeats(cell).warmup)
    results: list[RolloutResult] = []
    with recorder.measuring("time"):
        seconds = timed(lambda: results.append(rollout(None)), synchronize=synchronize, repeats=repeats(cell).repeats)
    timer = PhaseTimer(synchronize)
    phases: list[dict[str, float]] = []
    with recorder.measuring("phases"):
        for _ in range(repeats(cell).repeats):
            rollout(timer.phase)
            phases.append(timer.take())

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
    decoded = stats.generated_tokens - len(results[0].responses)
    if decoded:
        rates = [decoded / taken["decode"] for taken in phases]
        recorder.repeated("decode_tokens_per_second", rates, "token/s", scope="decode")
    else:
        recorder.not_measured("decode_tokens_per_second", "every response has one token, which comes of its prefill")
    return results[0], seconds


def _record_work(recorder: Recorder, result: RolloutResult) -> None:
    stats = result.stats
    recorder.metric("generated_tokens", stats.generated_tokens, "token", method="response tokens, no padding")
    recorder.metric("prompt_tokens", stats.prompt_tokens, "token")
    recorder.metric(
        "shared_prompt_tokens", stats.shared_prompt_tokens, "token", method="not run: another request's were the same"
    )
    recorder.metric("padded_tokens", stats.padded_tokens, "token")
    recorder.metric("recurrent_rows", stats.recurrent_rows, "row", method="tokens run through one loop, over all loops")
    recorder.metric("mean_executed_depth", stats.mean_executed_depth, "loop")
    for depth, tokens in sorted(stats.decode_depths.items()):
        recorder.metric(f"decode_tokens/depth_{depth}", tokens, "token", method="without each response's first token")
    recorder.metric("decode_steps", stats.decode_steps)
    recorder.metric("prefill_calls", stats.prefill_calls)
    recorder.metric("peak_active", stats.peak_active, "request")
    recorder.metric("kv_cache_bytes", stats.kv_cache_bytes, "B", method="preallocated pool, part of live_peak_bytes")
    stopped = sum(response.finish_reason == "stop" for response in result.responses)
    recorder.metric("stopped_responses", stopped, "response", method="finish reason stop; the others: length")
    recorder.metric("responses", len(result.responses), "response")


def _compare_logprobs(
    cell: Cell,
    recorder: Recorder,
    model: OuroForCausalLM,
    requests: Sequence[Request],
    responses: Sequence[Response],
) -> None:
    """Largest |difference| between the rollout's log-probs and the learner's over the same tokens and depths.

    The learner's are of the whole vocabulary: where the rollout is greedy or draws from a part of it, its raw log-probs
    are compared.
    """
    raw = cell.rollout.temperature == 0 or any(request.truncates for request in requests)
    kind: LogprobKind = "dense" if cell.rollout.schedule == "dense" else "replay"
    rows = [
        TrainingResponse(request.prompt_tokens, response.tokens, advantage=0.0, exit_depths=response.exit_depths)
        for request, response in zip(requests, responses, strict=True)
    ]

    def largest_difference() -> float:
        evaluated = response_logprobs(
            kind,
            model,
            rows,
            temperature=1.0 if raw else cell.rollout.temperature,
            microbatch_tokens=cell.batch.microbatch_tokens,
        )
        return max(
            abs(ours - theirs)
            for response, logprobs in zip(responses, evaluated, strict=True)
            for ours, theirs in zip(response.raw_logprobs if raw else response.logprobs, logprobs, strict=True)
        )

    method = f"max over tokens, against {kind} log-probs"
    recorder.metric("logprob_error_learner", largest_difference(), "nat", method=f"{method} in the same precision")
    model.to(torch.float64)
    recorder.metric("logprob_error_fp64", largest_difference(), "nat", method=f"{method} in fp64, same weights")
