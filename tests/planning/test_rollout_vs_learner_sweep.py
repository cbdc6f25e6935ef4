"""The sweep `rollout_vs_learner`: every arm that it is for, each in five seeds beside its baseline."""

from planning.test_learner_sweeps import cohorts, plan_of

from scalerlt.records.plan import PlannedCell

ARM = ("rollout", "logprob", "logprob.replay", "logprob.old", "correction")
SETTING = ("experiment.lag", "precision", "rollout.precision", "rollout.deterministic")


def arm(cell: PlannedCell) -> tuple[object, ...]:
    return tuple(cell.axes.get(key) for key in ARM)


def test_rollout_vs_learner() -> None:
    plan = plan_of("rollout_vs_learner")
    assert {cell.state for cell in plan.cells} == {"planned"}
    rows: dict[tuple[object, ...], list[PlannedCell]] = {}
    for cell in plan.cells:
        assert cell.axes["batch.minibatch_responses"] == 16, "four updates on 64 responses"
        setting = (*(cell.axes.get(key) for key in SETTING), cell.axes.get("experiment.grad_bias_every"))
        rows.setdefault((*arm(cell), *setting), []).append(cell)
    for cells in rows.values():
        assert cohorts(cells) == {(n, n) for n in range(5)}
    arms = {
        ("dense", "dense", None, None, None),
        ("last_exited", "dense", None, None, None),
        ("last_exited", "dense", None, "dense", "tis"),
        ("last_exited", "hybrid", "engine", None, None),
        ("last_exited", "hybrid", None, None, None),
        ("last_exited", "hybrid", "recorded", None, None),
    }
    for lag in (None, 1, 4):
        assert arms <= {row[:5] for row in rows if row[5:9] == (lag, "fp32", None, None)}
    assert {row[4] for row in rows} == {None, "tis", "icepop", "mis", "seq_rs", "geo_rs"}
    assert {row[3] for row in rows} == {None, "dense", "replay"}
    assert {row[6:8] for row in rows} == {("fp32", None), ("fp32", "bf16"), ("bf16", None), ("bf16", "fp32")}
    schedules = {"dense", "last_exited", "delayed_exit", "deferred_fill", "shared_kv"}
    assert {row[0] for row in rows} == schedules
    baselines = {(row[0], *row[5:]) for row in rows if row[1:5] == ("dense", None, None, None)}
    assert {(row[0], *row[5:]) for row in rows} == baselines, "each row has a dense learner under its rollout"
    whole = {row[5:8] for row in rows if row[:5] == ("dense", "dense", None, None, None)}
    assert {row[5:8] for row in rows} == whole, "and a rollout at full depth, in its precisions and at its lag"
