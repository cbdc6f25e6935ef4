"""Records become frames, statistics, tables, figures and a report: from a runs directory, and from nothing else.

`load_runs`, `load_metrics` and `load_series` give pandas frames, `build_report` writes tables, figures and a manifest.
The statistics that they show are functions of plain numbers. pandas, matplotlib and scipy are imported only when
something that needs them is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalerlt.analysis.accuracy import (
        Accuracy,
        AccuracyDifference,
        avg_at_k,
        default_margin,
        paired_accuracy,
        paired_avg_at_k,
    )
    from scalerlt.analysis.bootstrap import BootstrapEstimate, bootstrap_interval, interquartile_mean
    from scalerlt.analysis.frame import load_metrics, load_runs, load_series
    from scalerlt.analysis.intervals import student_interval
    from scalerlt.analysis.multiple import holm
    from scalerlt.analysis.ratios import Ratio, paired_ratio
    from scalerlt.analysis.report import Report, SweepReport, build_report
    from scalerlt.power import detectable_margin

__all__ = [
    "Accuracy",
    "AccuracyDifference",
    "BootstrapEstimate",
    "Ratio",
    "Report",
    "SweepReport",
    "avg_at_k",
    "bootstrap_interval",
    "build_report",
    "default_margin",
    "detectable_margin",
    "holm",
    "interquartile_mean",
    "load_metrics",
    "load_runs",
    "load_series",
    "paired_accuracy",
    "paired_avg_at_k",
    "paired_ratio",
    "student_interval",
]

_MODULES = {
    "scalerlt.analysis.accuracy": (
        "Accuracy",
        "AccuracyDifference",
        "avg_at_k",
        "default_margin",
        "paired_accuracy",
        "paired_avg_at_k",
    ),
    "scalerlt.analysis.bootstrap": ("BootstrapEstimate", "bootstrap_interval", "interquartile_mean"),
    "scalerlt.analysis.frame": ("load_metrics", "load_runs", "load_series"),
    "scalerlt.analysis.intervals": ("student_interval",),
    "scalerlt.analysis.multiple": ("holm",),
    "scalerlt.analysis.ratios": ("Ratio", "paired_ratio"),
    "scalerlt.analysis.report": ("Report", "SweepReport", "build_report"),
    "scalerlt.power": ("detectable_margin",),
}
"""For each module the names that this package shows."""


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
