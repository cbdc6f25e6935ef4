"""Which cells that have a record run again, by each word of `retry`."""

from pathlib import Path

import pytest

from scalerlt.errors import RequestErrors
from scalerlt.planning.hydra_bridge import compose
from scalerlt.planning.resolve import resolve_all
from scalerlt.planning.retry import BY_VERDICT, DEFAULT, WORDS, as_list, read_retry, why_again
from scalerlt.records.record import Record, Verdict

HERE, THERE = 40 * "a", 40 * "b"


def record(verdict: Verdict, revision: str | None = HERE) -> Record:
    return Record(
        sweep="s",
        cell_id="c",
        axes={},
        attempt=1,
        verdict=verdict,
        started="2026-01-01T00:00:00+00:00",
        ended="2026-01-01T00:00:01+00:00",
        provenance={} if revision is None else {"git_revision": revision},
    )


def again(words: set[str], revision: str | None = HERE) -> set[str]:
    """The verdicts that run again, of records of this revision."""
    return {verdict.value for verdict in Verdict if why_again(record(verdict), words, revision)}


@pytest.mark.parametrize("word", BY_VERDICT)
def test_a_verdict_names_its_own_cells(word: str) -> None:
    assert again({word}) == {word, "preempted"}


def test_the_words_for_several() -> None:
    assert again(set(DEFAULT)) == {"failed", "killed", "lost", "timeout", "preempted"}
    assert again({"failed", "oom"}) == {"failed", "oom", "preempted"}
    assert again({"all"}) == {verdict.value for verdict in Verdict}
    assert again({"none"}) == set()


def test_other_revision_is_of_measured_cells() -> None:
    assert again({"other_revision"}) == {"preempted"}
    assert again({"other_revision"}, THERE) == {"measured", "preempted"}
    assert again({"other_revision"}, None) == {"measured", "preempted"}
    assert why_again(record(Verdict.MEASURED, None), {"other_revision"}, None) is None
    assert why_again(record(Verdict.MEASURED, None), {"other_revision"}, HERE) is not None
    assert why_again(record(Verdict.MEASURED), {"failed"}, THERE) is None


def test_the_reason_is_told() -> None:
    assert why_again(record(Verdict.OOM), {"oom"}, HERE) == "runs again (retry=oom): its record is oom"
    assert why_again(record(Verdict.MEASURED), {"other_revision"}, THERE) == (
        "runs again (retry=other_revision): measured at revision aaaaaaaaaa, this is bbbbbbbbbb"
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (["faild"], f"retry=faild: there are {', '.join(WORDS)}"),
        ([], "retry names nothing"),
        (None, "retry names nothing"),
        (["all", "failed"], "all stands alone"),
        (["failed", "none"], "none stands alone"),
        ([3], "retry=3: there are"),
        (True, "retry=true"),
    ],
)
def test_what_is_no_word_is_named(value: object, said: str) -> None:
    with pytest.raises(RequestErrors) as caught:
        read_retry(value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("retry=all", "retry=[all]"),
        ("retry=failed,killed", "retry=[failed,killed]"),
        ("retry=[failed,oom]", "retry=[failed,oom]"),
    ],
)
def test_a_list_is_no_sweep(given: str, written: str) -> None:
    assert as_list(given) == written


def test_a_request_carries_it_and_no_cell_does(tmp_path: Path) -> None:
    plain, asked = compose(["seed=0,1"]), compose(["seed=0,1", "retry=failed,oom"])
    assert plain.retry == DEFAULT
    assert asked.retry == {"failed", "oom"}
    assert len(asked.cells) == 2 and "retry" not in asked.swept
    assert [cell.identity for cell in resolve_all(asked.cells)] == [cell.identity for cell in resolve_all(plain.cells)]
    with pytest.raises(RequestErrors) as caught:
        compose(["seed=0,1", "retry=oum", "precision=fp23"])
    said = "\n".join(caught.value.problems)
    assert "retry=oum: there are failed, killed" in said and "did you mean fp32?" in said
