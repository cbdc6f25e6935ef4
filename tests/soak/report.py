"""What a soak came to: its figures, and the checks of what it left."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from soak import reader
from soak.orders import NATURAL
from soak.processes import Soak, marked


@dataclass
class Report:
    """Figures and checks."""

    finding: reader.Finding
    figures: list[tuple[str, str]]

    @property
    def problems(self) -> list[str]:
        """What is wrong, each with the check that says so."""
        return [f"{name}: {text}" for name, texts in self.finding.problems.items() for text in texts]

    def table(self) -> str:
        """Both, as Markdown."""
        checks = [("check", "looked at", "wrong")]
        for name in reader.CHECKS:
            wrong = len(self.finding.problems.get(name, []))
            checks.append((name, str(self.finding.looked_at[name]), str(wrong)))
        return f"{_markdown([('figure', 'value'), *self.figures])}\n\n{_markdown(checks)}"


def judge(soak: Soak, finding: reader.Finding) -> None:
    """Look for processes that were left, and compare the files with what the commands say of them."""
    left = marked(soak.mark)
    finding.check("no process is left over", not left, f"{left} are still there")
    plan = soak.command("plan", "--json", "--config-dir", "conf", *soak.request)
    status = soak.command("status", "runs", "--json")
    report = soak.command("report", str(soak.sweep), "--out", "report")
    fault = "".join(done.stderr for done in (plan, report) if done.returncode) or report.stderr
    if fault:
        finding.check("plan, status and report agree", False, fault)
    else:
        coverage = (soak.folder / "report/tables/coverage.csv").read_text()
        reader.compare(finding, plan.stdout, status.stdout, coverage)


def figures(
    soak: Soak, finding: reader.Finding, interruptions: Mapping[str, int], wall: float
) -> list[tuple[str, str]]:
    """The figures of a soak that has been read.

    Args:
        wall: seconds from its first start to its last end.
    """
    tries = finding.tries
    ordered = Counter(
        f"{order.strike or order.act}{' always' if order.always else ''}" for order in soak.orders.values()
    )
    del ordered["measure"]
    happened = Counter(line["what"] for attempt in tries for line in attempt.evidence if line["what"] in NATURAL)
    happened += Counter(strike["kind"] for strike in finding.strikes if strike["kind"] in ("child", "server"))
    spans = [attempt.evidence[-1]["moment"] - attempt.evidence[0]["moment"] for attempt in tries if attempt.evidence]
    rows = [
        ("seed", str(soak.seed)),
        ("cells", str(len(finding.standing))),
        ("of them ordered to be at fault", _counts(ordered)),
        ("starts of the sweep", str(soak.starts)),
        ("interruptions", _counts(interruptions)),
        ("faults that happened", _counts(happened)),
        ("attempts", str(len(tries))),
        ("their verdicts", _counts(Counter(attempt.verdict for attempt in tries))),
        ("standing verdicts", _counts(Counter(finding.standing.values()))),
        ("wall time", f"{wall:.0f} s"),
        ("in the experiments", f"{sum(spans):.0f} s"),
    ]
    overhead = [seconds for attempt in tries if (seconds := attempt.record.get("overhead_seconds")) is not None]
    if len(overhead) > 1:
        middle, high = statistics.median(overhead), statistics.quantiles(overhead, n=10)[-1]
        rows.append(("overhead of an attempt", f"median {middle:.2f} s, p90 {high:.2f} s"))
    return rows


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _markdown(rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])
