"""How a memory report enters a record: one name per kind of figure, `/phase` behind it for each phase."""

from scalerlt.measure.breakdown import PARTS, ByPart, Part
from scalerlt.measure.memory import RSS_METHOD, MemoryReport
from scalerlt.records.recorder import Recorder


def record_memory(recorder: Recorder, report: MemoryReport) -> None:
    """Record live, resident and CUDA peaks, of the step and of each of its phases."""
    if report.rss_baseline is None:
        recorder.unsupported("rss_baseline_bytes", report.rss_reason or "", "B")
    else:
        recorder.metric("rss_baseline_bytes", report.rss_baseline, "B", method="VmRSS when the step began")
    for suffix, peaks in [("", report.step), *((f"/{name}", peaks) for name, peaks in report.phases.items())]:
        recorder.metric(f"live_peak_bytes{suffix}", peaks.live, "B", method=report.live_method)
        for name, value, method, reason in (
            ("rss_peak_bytes", peaks.rss, RSS_METHOD, report.rss_reason),
            ("cuda_peak_allocated_bytes", peaks.cuda_allocated, "torch.cuda.max_memory_allocated", report.cuda_reason),
            ("cuda_peak_reserved_bytes", peaks.cuda_reserved, "torch.cuda.max_memory_reserved", report.cuda_reason),
        ):
            if value is not None:
                recorder.metric(name + suffix, value, "B", method=method)
            elif not suffix:
                recorder.unsupported(name, reason or "", "B")


_METHODS: dict[Part, str] = {
    "weights": "storages of parameters",
    "gradients": "storages that become .grad of a parameter or master weight, and what is added to them",
    "optimizer": "storages of moments and of master weights that are no parameters",
    "activations": "other storages that a forward pass saves for its backward pass",
    "logits": "products with the output head, and what is computed of them element by element, gradients too",
    "kv": "storages given to attention as keys or values, and what is copied into them",
    "other": "all else that operations return, and what kernels allocate for themselves",
}


def record_parts(recorder: Recorder, report: MemoryReport, found: ByPart, *, standing_bytes: int) -> None:
    """Record what the peak is made of: `memory_bytes/part` of the step, `phase_memory_bytes/part` of a phase.

    The peak is what stood before the step and the allocator's peak above it. The parts are counted without either, and
    how much of the peak they leave unexplained stands beside them.

    Args:
        recorder: of the cell.
        report: of the same step.
        found: its parts.
        standing_bytes: of what is there before the step: weights and optimizer state.
    """
    live = {"": report.step.live} | {name: peaks.live for name, peaks in report.phases.items()}
    for phase, parts in {"": found.step, **found.phases}.items():
        peak, suffix = standing_bytes + live[phase], f"/{phase}" if phase else ""
        method = f"what stands before the step and live_peak_bytes: {report.live_method}"
        recorder.metric(f"memory_peak_bytes{suffix}", peak, "B", method=method)
        recorder.metric(
            f"memory_unexplained_relative{suffix}",
            (peak - sum(parts.values())) / peak,
            method="memory_peak_bytes less the sum of its parts, over memory_peak_bytes",
        )
        name = f"{phase}_memory_bytes" if phase else "memory_bytes"
        for part, size in parts.items():
            method = f"{_METHODS[part]}; when the sum of all parts is largest"
            recorder.metric(f"{name}/{part}", size, "B", method=method)


def record_no_memory(recorder: Recorder, reason: str) -> None:
    """Record why there is no figure of `record_memory` and `record_parts`."""
    kinds = ("live_peak", "rss_baseline", "rss_peak", "cuda_peak_allocated", "cuda_peak_reserved", "memory_peak")
    for name in (*(f"{kind}_bytes" for kind in kinds), *(f"memory_bytes/{part}" for part in PARTS)):
        recorder.not_measured(name, reason, "B")
    recorder.not_measured("memory_unexplained_relative", reason)
