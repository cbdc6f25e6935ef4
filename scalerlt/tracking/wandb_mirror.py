"""`tracker=wandb`: an attempt as a run at Weights & Biases, or as an offline run in the attempt's folder."""

import importlib
import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scalerlt.errors import UserError
from scalerlt.records.base import finite
from scalerlt.records.record import Metric, Record, Verdict
from scalerlt.tracking.following import Answers, Mirrored, Row
from scalerlt.tracking.names import NAME_LENGTH, TAG_LENGTH, run_id, short, tags

X_AXES = ("step", "samples", "tokens", "seconds")
PATIENT_SECONDS, HURRIED_SECONDS = 60.0, 3.0
"""How long the server may take to answer while the cell runs, and when it has ended."""
LONGEST_TEXT = 2000
"""Characters of a question or an answer in a table."""
OTHER_RUNS = (
    *("RUN_ID", "RUN_GROUP", "RUN_DIR", "RUN_STORAGE_ID", "NAME", "NOTES", "DESCRIPTION", "JOB_TYPE", "TAGS"),
    *("RESUME", "RESUME_FROM", "FORK_FROM", "SWEEP_ID", "SWEEP_PARAM_PATH", "DIR", "SERVICE", "INITED"),
)
"""WANDB_... variables that mean one run, which is another than ours."""


class WandbMirror:
    """One run; a continued attempt goes on in the run of the attempt that it continues.

    Raises:
        UserError: wandb is not installed.
    """

    def __init__(self, mirrored: Mirrored, values: Mapping[str, Any]) -> None:
        prepare_environment(mirrored.folder)
        try:
            wandb: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise UserError(f"wandb cannot be imported ({error}); pip install 'scalerlt[wandb]'") from error
        self.notes: list[str] = []
        self._wandb = wandb
        self._attempt = mirrored.number
        first = mirrored.chain[0]
        # the server numbers rows; those of a continued attempt stand behind all that came before
        self._next = sum(link.events for link in mirrored.chain[:-1])
        arguments = {
            "project": values["project"],
            "entity": values["entity"],
            "id": run_id(mirrored.frozen, first.number, first.path),
            "name": short(mirrored.frozen.cell_id, NAME_LENGTH),
            "group": short(mirrored.frozen.sweep, NAME_LENGTH),
            "job_type": short(str(mirrored.frozen.axes.get("experiment", "")), TAG_LENGTH),
            "tags": tags(mirrored.frozen.axes, mirrored.frozen.overrides),
            "config": configuration(mirrored),
            "dir": str(mirrored.folder),
            # not for a first attempt: its upload then replaces what an upload that broke off had left
            "resume": "allow" if len(mirrored.chain) > 1 else None,
            "allow_val_change": True,
            "settings": wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                save_code=False,
                x_disable_stats=True,  # it would look at the GPUs that the cell uses
                x_disable_meta=True,
                init_timeout=HURRIED_SECONDS if mirrored.hurried else PATIENT_SECONDS,
            ),
        }
        self._run = self._started(chosen_mode(values["mode"]), arguments)
        for axis in X_AXES:
            self._run.define_metric(axis)
        self._run.define_metric("*", step_metric="step")

    def row(self, row: Row) -> None:
        """Log one row of the series, with the attempt that it is of."""
        self._log(row)

    def answers(self, answers: Answers) -> None:
        """Log a table of answers."""
        if not answers.rows:
            return
        columns = list(answers.rows[0])
        table = self._wandb.Table(columns, [[_cell(row[name]) for name in columns] for row in answers.rows])
        self._log({"step": answers.step, "validation_samples": table})

    def end(self, record: Record | None) -> None:
        """Put the record's figures into the summary, and finish."""
        self._run.summary.update(summary(record))
        if record is not None and record.verdict is Verdict.PREEMPTED:
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if record is not None and record.verdict.answers else 1)

    def _started(self, mode: str | None, arguments: Mapping[str, Any]) -> Any:
        """The run; an offline one where the server cannot be reached."""
        try:
            return self._wandb.init(mode=mode, **arguments)
        except Exception as error:  # of many kinds, wandb's own and others'
            if (mode or os.environ["WANDB_MODE"]) != "online":
                raise
            self.notes.append(f"wandb: no connection ({error}); mirrored offline, scalerlt wandb-sync uploads it")
            self._wandb.teardown()  # its service still holds the run
            return self._wandb.init(mode="offline", **arguments)

    def _log(self, values: Mapping[str, Any]) -> None:
        self._run.log({**values, "attempt": self._attempt}, step=self._next)
        self._next += 1


def configuration(mirrored: Mirrored) -> dict[str, Any]:
    """The configuration of a run: the resolved one, and what else says what ran and where."""
    frozen = mirrored.frozen
    content: dict[str, Any] = {
        **frozen.config,
        **mirrored.facts(),
        "sweep": frozen.sweep,
        "cell_id": frozen.cell_id,
        "identity": frozen.identity,
        "axes": frozen.axes,
        "attempts": [link.number for link in mirrored.chain],
        "superseded_from_step": mirrored.superseded(),
    }
    plain: dict[str, Any] = finite(content)
    return plain


def summary(record: Record | None) -> dict[str, Any]:
    """What a run's summary says: the record's figures, and of those that were not measured, why.

    A figure that was not measured has no number, neither zero nor anything else: `status/<name>` says what it is. One
    that is not finite stands as text, as in the record: wandb would drop the number.
    """
    if record is None:
        return {"verdict": Verdict.LOST.value, "reason": "the process that ran it is gone, and has left no record"}
    values: dict[str, Any] = {"verdict": record.verdict.value, "attempt": record.attempt}
    if record.reason is not None:
        values["reason"] = record.reason
    if record.notes:
        values["notes"] = record.notes
    for name, metric in record.metrics.items():
        if metric.status == "measured":
            values[name] = metric.value
        else:
            values[f"status/{name}"] = _status(metric)
    plain: dict[str, Any] = finite(values)
    return plain


def chosen_mode(asked: str) -> str | None:
    """The mode of a run; None leaves it to WANDB_MODE."""
    if asked != "auto":
        return asked
    if os.environ.get("WANDB_MODE"):
        return None
    return "online" if key_is_known() else "offline"


def key_is_known() -> bool:
    """Whether there is a key: in WANDB_API_KEY, as an identity token, or for the server in .netrc."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    named = os.environ.get("NETRC")
    for file in [Path(named)] if named else [Path("~/.netrc"), Path("~/_netrc")]:
        try:
            if netrc.netrc(file.expanduser()).authenticators(host):
                return True
        except (OSError, RuntimeError, netrc.NetrcParseError):
            continue
    return False


def prepare_environment(folder: Path) -> None:
    """Keep other runs' variables from this one, and what wandb writes beside its run inside the folder."""
    for name in OTHER_RUNS:
        os.environ.pop(f"WANDB_{name}", None)
    for name in ("CACHE", "DATA"):  # tables wait in the latter for their upload
        os.environ.setdefault(f"WANDB_{name}_DIR", str(folder / f"wandb-{name.lower()}"))
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # an offline run shall mean no connection at all


def _status(metric: Metric) -> str:
    return f"{metric.status}: {metric.reason}" if metric.reason else metric.status


def _cell(value: Any) -> Any:
    return _cut(value) if isinstance(value, str) else value


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
