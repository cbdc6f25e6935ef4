"""What a rollout did, as metrics: its work, and how its readouts compare with its loops."""

from statistics import fmean, median

from scalerlt.experiments.building import device_of
from scalerlt.experiments.rollout_batch import RolloutBatch
from scalerlt.measure.clock import synchronizer, timed
from scalerlt.records.recorder import Recorder
from scalerlt.rollout.coda import one_loop, one_readout
from scalerlt.rollout.stats import RolloutResult, RolloutStats

CODA_WARMUP, CODA_REPEATS = 3, 20


def record_work(recorder: Recorder, batch: RolloutBatch, result: RolloutResult, seconds: list[float]) -> None:
    """Record the counts of a rollout that took so many seconds in each repeat."""
    stats = result.stats
    recorder.metric("generated_tokens", stats.generated_tokens, "token", method="response tokens, no padding")
    recorder.metric("prompt_tokens", stats.prompt_tokens, "token")
    recorder.metric(
        "shared_prompt_tokens", stats.shared_prompt_tokens, "token", method="not run: another request's were the same"
    )
    recorder.metric("recurrent_rows", stats.recurrent_rows, "row", method="tokens run through one loop, over all loops")
    recorder.repeated(
        "recurrent_rows_per_second", [stats.recurrent_rows / second for second in seconds], "row/s", scope="rollout"
    )
    recorder.metric("filled_rows", stats.filled_rows, "row", method="of these those run after their token was read out")
    _record_padding(recorder, batch, stats)
    recorder.metric("mean_executed_depth", stats.mean_executed_depth, "loop")
    for depth, tokens in sorted(stats.decode_depths.items()):
        recorder.metric(f"decode_tokens/depth_{depth}", tokens, "token", method="without each response's first token")
    recorder.metric("decode_steps", stats.decode_steps)
    recorder.metric("prefill_calls", stats.prefill_calls)
    recorder.metric("peak_active", stats.peak_active, "request")
    if _engine(batch) == "hf":
        recorder.not_measured("kv_cache_bytes", "transformers' cache grows with each token", "B")
    else:
        pool = "preallocated pool" if _engine(batch) == "vllm" else "preallocated pool, part of live_peak_bytes"
        recorder.metric("kv_cache_bytes", stats.kv_cache_bytes, "B", method=pool)
    stopped = sum(response.finish_reason == "stop" for response in result.responses)
    recorder.metric("stopped_responses", stopped, "response", method="finish reason stop; the others: length")
    recorder.metric("responses", len(result.responses), "response")


def _engine(batch: RolloutBatch) -> str:
    return batch.cell.rollout.engine.name


def _record_padding(recorder: Recorder, batch: RolloutBatch, stats: RolloutStats) -> None:
    if _engine(batch) == "vllm":
        for name, unit in (("padded_tokens", "token"), ("padded_rows", "row"), ("padded_share", "fraction")):
            recorder.not_measured(name, "vLLM does not say how it fills up its batches", unit)
        return
    recorder.metric("padded_tokens", stats.padded_tokens, "token")
    padded = batch.model.config.total_ut_steps * stats.padded_tokens + stats.padded_rows
    recorder.metric("padded_rows", padded, "row", method="places of batches of a loop that held no token")
    recorder.metric(
        "padded_share",
        padded / (padded + stats.recurrent_rows),
        "fraction",
        method="padded_rows over padded_rows and recurrent_rows",
    )


def record_coda(recorder: Recorder, batch: RolloutBatch, result: RolloutResult) -> None:
    """Time one loop and one readout of as many rows as were in flight at most, and record what that lets expect.

    d is the loops run per decoded token. A dense rollout reads out once in K loops of all rows, K + c loops' worth of
    time for c the readout's over one loop's; under continuous depth batching some row stops in nearly every loop, and a
    token takes d (1 + c).
    """
    if _engine(batch) in ("vllm", "hf"):
        for name in ("loop_seconds", "coda_seconds", "coda_over_loop"):
            recorder.not_measured(name, "the engine's loops and readouts are not run by themselves")
        _record_expectation(recorder, batch, result.stats, None)
        return
    rows = result.stats.peak_active
    length = round(
        fmean(
            len(request.prompt_tokens) + len(response.tokens) / 2
            for request, response in zip(batch.requests, result.responses, strict=True)
        )
    )
    synchronize = synchronizer(device_of(batch.cell))
    shape = f"{rows} rows"
    medians = {}
    for name, work, method in (
        ("loop_seconds", one_loop(batch.model, rows, length), f"one loop of {shape}, each with {length} positions"),
        ("coda_seconds", one_readout(batch.model, batch.requests[:rows]), f"logits and drawn tokens of {shape}"),
    ):
        timed(work, synchronize=synchronize, repeats=CODA_WARMUP)
        seconds = timed(work, synchronize=synchronize, repeats=CODA_REPEATS)
        recorder.repeated(name, seconds, "s", scope="decode", method=f"{method}, by itself")
        medians[name] = median(seconds)
    share = medians["coda_seconds"] / medians["loop_seconds"]
    recorder.metric("coda_over_loop", share, method="c: median coda_seconds over median loop_seconds")
    _record_expectation(recorder, batch, result.stats, share)


def _record_expectation(recorder: Recorder, batch: RolloutBatch, stats: RolloutStats, share: float | None) -> None:
    """What the loops that were left out, and the readout's share of one loop, let expect."""
    full_depth = batch.model.config.total_ut_steps
    decoded = stats.decode_depths.total()
    if not decoded:
        for name in ("rows_per_decoded_token", "loops_saved", "expected_speedup"):
            recorder.not_measured(name, "every response has one token, which comes of its prefill")
        return
    loops = (stats.recurrent_rows - full_depth * stats.prompt_tokens) / decoded
    recorder.metric("rows_per_decoded_token", loops, "row", method="d: loops run per decoded token, later ones too")
    recorder.metric("loops_saved", full_depth / loops, method="K/d")
    if batch.cell.rollout.schedule == "dense" or share is None:
        recorder.unsupported("expected_speedup", "dense is what the others are compared with")
        return
    expected = full_depth / loops * (1 + share / full_depth) / (1 + share)
    recorder.metric("expected_speedup", expected, method="K/d (1 + c/K) / (1 + c): a readout after every loop")
