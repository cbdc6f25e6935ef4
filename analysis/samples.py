"""`scalerlt show`: what the policy wrote, from the sample files of a cell."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalerlt.analysis.series import Stretch, stretches
from scalerlt.errors import UserError
from scalerlt.records.samples import Sample, read_samples
from scalerlt.records.store import CELL_FILE, CellDirectory, sweeps

_FILE = re.compile(r"(step|eval)-(\d{6,})\.jsonl")


@dataclass(frozen=True)
class SampleFile:
    """One file of samples.

    Attributes:
        kind: `step`: what training generated at this step; `eval`: the held-out answers after it.
    """

    path: Path
    kind: str
    step: int

    @property
    def title(self) -> str:
        """What the file holds, for people."""
        return f"{'training' if self.kind == 'step' else 'evaluation'}, step {self.step}"


def find_cell(name: str, runs: Path = Path("runs")) -> CellDirectory:
    """A cell by its directory, or by its id or a part of it in a runs directory.

    Raises:
        UserError: there is none, or more than one.
    """
    if (Path(name) / CELL_FILE).is_file():
        return CellDirectory(Path(name))
    known = [cell for sweep in sweeps(runs) for cell in sweep.cells()]
    matching = [cell for cell in known if cell.path.name == name] or [cell for cell in known if name in cell.path.name]
    if len(matching) == 1:
        return matching[0]
    if matching:
        listed = ", ".join(str(cell.path) for cell in matching[:5])
        raise UserError(f"{name} names {len(matching)} cells: {listed}; give more of the id, or the directory")
    raise UserError(f"{name}: neither a cell's directory nor a part of the id of a cell in {runs}")


def sample_files(parts: Sequence[Stretch]) -> list[SampleFile]:
    """The sample files of what a cell's attempts contribute, by step; a step's evaluation last, as it happened.

    An attempt's files count up to the step that a later one went on from.
    """
    found: dict[tuple[int, bool], SampleFile] = {}
    for part in parts:
        for path in sorted((part.attempt.path / "samples").glob("*.jsonl")):
            match = _FILE.fullmatch(path.name)
            if match and int(match[2]) <= part.until:
                found[int(match[2]), match[1] == "eval"] = SampleFile(path, match[1], int(match[2]))
    return [found[key] for key in sorted(found)]


def show_samples(
    cell: CellDirectory, *, step: int | None, wrong: bool, limit: int, other: CellDirectory | None
) -> None:
    """Print answers with their grades and depths.

    Args:
        step: of this step, what training generated and the evaluation after it; the last that has samples by default.
        wrong: only answers that the grader did not accept.
        limit: at most so many of each file.
        other: a second cell: print only the problems that the two answer differently, side by side.

    Raises:
        UserError: there are no such samples, or a file of them is broken.
    """
    for file in _chosen(cell, step):
        samples = read_samples(file.path).samples
        print(f"{cell.path.name}, {file.title}: {sum(map(_right, samples))} of {len(samples)} answers are right")
        if other is None:
            shown = [sample for sample in samples if not (wrong and _right(sample))]
            _print([(sample,) for sample in shown], limit)
        else:
            _show_difference(cell, samples, other, file, wrong=wrong, limit=limit)


def _chosen(cell: CellDirectory, step: int | None) -> list[SampleFile]:
    """The files of one step."""
    files = sample_files(stretches(cell))
    if not files:
        raise UserError(f"{cell.path}: no samples; gsm8k_reward and gsm8k_eval leave them")
    wanted = files[-1].step if step is None else step
    matching = [file for file in files if file.step == wanted]
    if not matching:
        steps = ", ".join(str(number) for number in dict.fromkeys(file.step for file in files))
        raise UserError(f"{cell.path}: no samples of step {step}; there are {steps}")
    return matching


def _right(sample: Sample) -> bool:
    return sample.reward > 0


def _show_difference(
    cell: CellDirectory, samples: list[Sample], other: CellDirectory, file: SampleFile, *, wrong: bool, limit: int
) -> None:
    same_kind = [one for one in _chosen(other, file.step) if one.kind == file.kind]
    if not same_kind:
        print(f"  {other.path.name} has none of these")
        return
    theirs = _numbered(read_samples(same_kind[0].path).samples)
    pairs = [(ours, theirs[key]) for key, ours in _numbered(samples).items() if key in theirs]
    print(f"{len(pairs)} answers to the same problems, of which one cell alone has right:")
    print(f"  {sum(_right(a) and not _right(b) for a, b in pairs)} {cell.path.name}")
    print(f"  {sum(_right(b) and not _right(a) for a, b in pairs)} {other.path.name}")
    different = [(a, b) for a, b in pairs if a.response_tokens != b.response_tokens and not (wrong and _right(a))]
    _print(different, limit)


def _numbered(samples: list[Sample]) -> dict[tuple[str, int], Sample]:
    """Samples by their problem and how many answers to it came before: what two cells have in common."""
    seen: Counter[str] = Counter()
    numbered: dict[tuple[str, int], Sample] = {}
    for sample in samples:
        numbered[sample.problem_id, seen[sample.problem_id]] = sample
        seen[sample.problem_id] += 1
    return numbered


def _print(answers: Sequence[tuple[Sample, ...]], limit: int) -> None:
    """Each problem with its answers, one below the other."""
    for samples in answers[:limit]:
        print(f"\n{samples[0].problem_id}: {_printable(samples[0].question or '')}")
        for sample in samples:
            print(_answer(sample))
    if len(answers) > limit:
        print(f"\n{len(answers) - limit} more; --limit N shows them")
    print()


def _answer(sample: Sample) -> str:
    text = _printable(sample.text or "").replace("\n", "\n    ")
    facts = [f"gold {sample.gold}", f"read {_printable(sample.extracted or 'nothing')}"]
    facts += [f"strict {sample.strict}", f"flexible {sample.flexible}", f"reward {sample.reward:g}"]
    facts += [f"{len(sample.response_tokens)} tokens", sample.finish_reason]
    if sample.advantage is not None:
        facts.append(f"advantage {sample.advantage:+.3f}")
    if sample.exit_depths:
        facts.append("depths " + "".join(map(str, sample.exit_depths)))
    return f"    {text}\n  [{', '.join(facts)}]"


def _printable(text: str) -> str:
    """Text that cannot move the cursor of a terminal: what is no visible character is shown as its escape."""
    return "".join(
        character if character.isprintable() or character == "\n" else repr(character)[1:-1] for character in text
    )
