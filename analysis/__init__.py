"""Records become frames, tables, figures and a report: from the files of a runs directory, and from nothing else.

`load_runs`, `load_metrics` and `load_series` give pandas frames, `build_report` writes tables, figures and a
manifest. pandas and matplotlib are imported only when one of them is asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalerlt.analysis.frame import load_metrics, load_runs, load_series
    from scalerlt.analysis.report import Report, SweepReport, build_report

__all__ = ["Report", "SweepReport", "build_report", "load_metrics", "load_runs", "load_series"]


def __getattr__(name: str) -> Any:
    if name in ("load_metrics", "load_runs", "load_series"):
        from scalerlt.analysis import frame

        return getattr(frame, name)
    if name in ("Report", "SweepReport", "build_report"):
        from scalerlt.analysis import report

        return getattr(report, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
