"""How a memory report enters a record: one name per kind of figure, `/phase` behind it for each phase."""

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
