"""What an evaluation answered, problem by problem: what a comparison of two policies on the same problems takes."""

from dataclasses import replace
from pathlib import Path

from scalerlt.analysis.marks import MEASURED
from scalerlt.analysis.reading import CellResult
from scalerlt.errors import UserError
from scalerlt.records.samples import read_samples


def with_answers(cell: CellResult, sweep: Path, sources: list[str], problems: list[str]) -> CellResult:
    """A `gsm8k_eval` cell with the grades of its answers; adds the file to `sources`, or what is wrong to `problems`.

    A cell that left no samples (they were too large, or of the reference answers) stays as it is.
    """
    if cell.state != MEASURED or cell.record is None:
        return cell
    name = f"{cell.cell_id}/attempt-{cell.record.attempt:03d}/samples/eval-000000.jsonl"
    if not (sweep / name).is_file():
        return cell
    try:
        samples = read_samples(sweep / name).samples
    except UserError as error:
        problems.append(f"{name}: {str(error).removeprefix(f'samples file {sweep / name}').lstrip(':, ')}")
        return cell
    sources.append(name)
    answers: dict[str, tuple[bool, ...]] = {}
    for sample in samples:
        answers[sample.problem_id] = (*answers.get(sample.problem_id, ()), sample.reward > 0)
    return replace(cell, answers=answers)
