"""From overrides to cells: through Hydra, and equal to what Hydra itself composes."""

from pathlib import Path

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf
from schema.plain_config import plain_config

from scalerlt.errors import RequestErrors, UserError
from scalerlt.planning.hydra_bridge import CONF, compose
from scalerlt.planning.inputs import file_inputs
from scalerlt.planning.plan import freeze, make_plan
from scalerlt.planning.resolve import resolve_all
from scalerlt.records.base import UnreadableDocument
from scalerlt.records.cell import FrozenCell
from scalerlt.records.plan import Plan
from scalerlt.schema import load_cell
from scalerlt.schema.frozen import load_frozen
from scalerlt.schema.machine import Machine

CPU = Machine(gpus=0, gpu_reason="none here", cpus=2)
GPU = Machine(gpus=1, gpu_reason="", cpus=2)
HERE = Path(__file__).parent


def problems_of(*overrides: str) -> list[str]:
    with pytest.raises(RequestErrors) as caught:
        resolve_all(compose(list(overrides)).cells, CPU)
    return caught.value.problems


def test_a_grid_has_every_combination_once_in_order() -> None:
    request = compose(["precision=fp32,bf16", "checkpoint=none,layer", "seed=range(2)"])
    assert request.swept == ["precision", "checkpoint", "seed"]
    seen = [(c.config["precision"]["name"], c.config["checkpoint"]["name"], c.config["seed"]) for c in request.cells]
    assert seen == [(p, c, s) for p in ("fp32", "bf16") for c in ("none", "layer") for s in (0, 1)]
    resolved = resolve_all(request.cells, CPU)
    assert len({cell.cell_id for cell in resolved}) == 8


@pytest.mark.parametrize(
    "overrides",
    [
        ["precision=bf16", "batch=large", "batch.microbatch_tokens=77", "seed=5"],
        ["task=random_tokens", "rollout=greedy", "optimizer=sgd", "optimizer.learning_rate=0.5"],
    ],
)
def test_a_composed_cell_is_what_hydra_composes(overrides: list[str]) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        expected = OmegaConf.to_container(hydra_compose("config", overrides=overrides), resolve=True)
    assert compose(overrides).cells[0].config == expected


def test_all_mistakes_are_reported_at_once_with_the_nearest_names() -> None:
    text = "\n".join(
        problems_of(
            "precision=fp23",
            "batch.grup_size=4",
            "sede=1",
            "model=tiny",
            "a b",
            "~batch",
            "rollout/engine=vlm",
            "+surplus=1",
            "batch.minibatch_responses=0",
            "optimizer.beta1=1.5",
        )
    )
    for said in (
        "precision=fp23: precision has no such option; did you mean fp32?",
        "batch.grup_size is not a configuration key; did you mean batch.group_size?",
        "sede is not a configuration key; did you mean seed?",
        "did you mean tiny_ouro?",
        "'a b' is not an override",
        "~batch takes away",
        "rollout/engine=vlm",
        "surplus is not a configuration key",
        "batch.minibatch_responses=0: input should be greater than 0",
        "optimizer.beta1=1.5: input should be less than 1",
    ):
        assert said in text


def test_each_wrong_value_of_a_list_is_a_problem_of_its_own() -> None:
    first, second = problems_of("checkpoint=a/b,layer,lop")
    assert first.startswith("checkpoint=a/b: checkpoint has no such option; there are ") and "lop:" not in first
    assert second == "checkpoint=lop: checkpoint has no such option; did you mean loop?"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("precision=c d", "precision='c d': precision has no such option"),
        ("precision='c d'", "precision='c d': precision has no such option"),
        ("precision=bf16,a:b", "precision='a:b': precision has no such option"),
        ("hydra/launcher=c d", "hydra/launcher='c d': hydra/launcher has no such option"),
        ('precision="it\'s c"', 'precision="it\'s c": precision has no such option'),
        ("hydra.verbose=a b,c", "hydra.verbose has one value for all cells, not 'a b', c;"),
        ("prompt.template=a b,a b", "prompt.template='a b' stands twice"),
    ],
)
def test_a_value_with_a_blank_is_told_as_it_is_written(override: str, said: str) -> None:
    (problem,) = problems_of(override)
    assert problem.startswith(said)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("batch.minibatch_responses=7", "does not divide"),
        ("batch.group_size=-4", "greater than 0"),
        ("batch.group_size=2.5", "valid integer"),
        ("rollout.max_new_tokens=0", "greater than 0"),
        ("model.num_key_value_heads=3", "not a multiple"),
        ("model.weights=/no/such/place", "there is no such file"),
        ("model.max_position_embeddings=40", "positions, but model.max_position_embeddings=40"),
        ("experiment=gsm8k_eval model.max_position_embeddings=40", "positions, but model.max_position_embeddings=40"),
        ("experiment=gsm8k_reward model.max_position_embeddings=40", "positions, but model.max_position_embeddings=40"),
        ("model.hidden_size=32", "model.weights=null gives a model of another shape random weights"),
        ("model.vocab_size=300", "model.vocab_size=300 is smaller than the tokenizer's 512 tokens"),
        ("task=gsm8k", "task.path is not set"),
        ("task.rollouts=/no/such/file", "there is no such file"),
        ("task.rollouts=null", "task.rollouts=None: input should be a valid string"),
        ("device.memory_limit=lots", "not a size"),
        ("seed=${nope}", "nope"),
        ("seed=???", "seed"),
        ("runs_dir=a,b", "cannot be swept"),
        ("runs_dir=null", "give the directory where records go"),
        ("runs_dir=[a]", "give the directory where records go"),
        ("runs_dir=''", "give the directory where records go"),
        ("runs_dir=${oc.env:NO_SUCH_VARIABLE}", "NO_SUCH_VARIABLE"),
        ("seed=range(0,10,0)", "must not be zero"),
        ("seed=range(10,0)", "names no values"),
        ("seed=interval(0,1)", "INTERVAL"),
        ("seed=range(0,100000000000)", "names more than 100,000 values"),
        ("batch=glob(z*)", "names no values"),
        ("batch.group_size=glob(*)", "names no values"),
        ("seed=" + 5000 * "9", "4300 digits"),
        ("seed=2147483648", "less than 2147483648"),
        ("hydra=1", "replaces all settings of Hydra"),
        ("hydra/sweeper=basic", "use hydra/sweeper=scalerlt"),
        ("hydra.sweeper._target_=os.system", "use hydra/sweeper=scalerlt"),
        ("precision.name=fp99", "precision.name belongs to the option"),
        ("experiment.name=../elsewhere", "experiment.name belongs to the option"),
        ("rollout.engine.name=other", "rollout.engine.name belongs to the option"),
        ("checkpoint._target_=os.getcwd", "checkpoint._target_ belongs to the option"),
        ("experiment._check_=os.getcwd", "experiment._check_ belongs to the option"),
        ("task.rollouts=pkg://no_such_package/rollouts.jsonl", "cannot be read"),
        ("task.rollouts=" + 300 * "a", "cannot be read"),
        ("task.rollouts='~no_such_user/file'", "cannot be read"),
        ("device.memory_limit=9999999TiB", "more than any machine has"),
        ("device.threads=1000000", "less than or equal to 4096"),
        (
            "experiment=gsm8k_reward,actor_update experiment.eval_problems=200",
            "experiment.eval_problems is not a configuration key of experiment=actor_update, which is chosen too",
        ),
    ],
)
def test_one_clear_line_for_a_wrong_value(override: str, said: str) -> None:
    problems = problems_of(*override.split())
    assert any(said in problem for problem in problems), problems
    assert all("\n" not in problem and "Traceback" not in problem for problem in problems)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "word_tokenizer.json"])
def test_every_file_of_a_checkpoint_that_is_read_is_part_of_the_identity(tmp_path: Path, name: str) -> None:
    cell = load_cell(plain_config({"model.weights": str(tmp_path)}))
    for file in ("config.json", "model.safetensors", "tokenizer.json", "word_tokenizer.json", "README.md"):
        (tmp_path / file).write_text("before")
    before = file_inputs(cell)["model.weights"].sha256
    (tmp_path / "README.md").write_text("of no interest")
    assert file_inputs(cell)["model.weights"].sha256 == before
    (tmp_path / name).write_text("after!")
    assert file_inputs(cell)["model.weights"].sha256 != before


def test_a_key_that_only_one_option_has_is_an_error_for_the_other() -> None:
    assert compose(["task.difficulty=two_digit"]).cells
    assert "task.difficulty is not a configuration key" in problems_of("task=random_tokens", "task.difficulty=x")[0]
    swept = problems_of("task=random_tokens,arithmetic", "task.difficulty=two_digit")
    assert any("difficulty" in problem for problem in swept)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            "checkpoint=layer checkpoint.loop_interval=3",
            "checkpoint.loop_interval is not a configuration key of checkpoint=layer; checkpoint=segments has it",
        ),
        ("checkpoint=layer,loop checkpoint.loop_interval=1", "of checkpoint=layer or checkpoint=loop; checkpoint=segm"),
        (
            "checkpoint.wave_responses=2",
            "of checkpoint=none; checkpoint=auto, checkpoint=joint, checkpoint=prefix and checkpoint=streamed have it",
        ),
        ("checkpoint.loop_intervall=1", "checkpoint.loop_intervall is not a configuration key"),
        ("checkpoint.nonsense=1", "checkpoint.nonsense is not a configuration key; did you mean"),
    ],
)
def test_a_key_of_another_option_names_the_options_that_have_it(overrides: str, said: str) -> None:
    (problem,) = problems_of(*overrides.split())
    assert said in problem
    assert ("have it" in problem or "has it" in problem) == ("have it" in said or "segm" in said)


def test_device_auto_is_resolved_before_freezing() -> None:
    cells = compose([]).cells
    assert resolve_all(cells, CPU)[0].config["device"]["type"] == "cpu"
    assert resolve_all(cells, GPU)[0].config["device"]["type"] == "cuda"


def test_what_cannot_run_stays_in_the_plan_with_its_reason(tmp_path: Path) -> None:
    request = compose(["precision=fp32,mxfp8", "device=cpu,cuda", f"runs_dir={tmp_path / 'runs'}"])
    cells = resolve_all(request.cells, CPU)
    plan = make_plan(request, cells, {})
    assert [cell.state for cell in plan.cells] == ["planned", "unsupported", "unsupported", "unsupported"]
    assert "this machine has none" in (plan.cells[1].reason or "")
    assert "mxfp8 has no implementation" in (plan.cells[2].reason or "")
    sweep, _ = freeze(plan, cells, tmp_path / "runs")
    assert len(sweep.cells()) == 1


def test_plans_are_numbered_and_cells_are_frozen_once(tmp_path: Path) -> None:
    request = compose(["seed=0,1"])
    cells = resolve_all(request.cells, CPU)
    plan = make_plan(request, cells, {})
    sweep, first = freeze(plan, cells, tmp_path)
    before = {cell.cell_file: cell.cell_file.stat().st_mtime_ns for cell in sweep.cells()}
    _, second = freeze(plan, cells, tmp_path)
    assert (first, second) == ("001.json", "002.json")
    assert {cell.cell_file: cell.cell_file.stat().st_mtime_ns for cell in sweep.cells()} == before
    assert Plan.read(sweep.path / "plans" / first) == plan
    frozen = FrozenCell.read(sweep.cells()[0].cell_file)
    assert resolve_all(request.cells, CPU)[0].identity == frozen.identity


def test_what_is_no_part_of_the_identity_goes_by_the_newest_request(tmp_path: Path) -> None:
    """A cell that ran out of its time limit gets the next request's limit, not the first one's for ever."""
    for limit in ("1.0", "60.0"):
        request = compose([f"resources.timeout_s={limit}"])
        cells = resolve_all(request.cells, CPU)
        sweep, _ = freeze(make_plan(request, cells, {}), cells, tmp_path)
    assert len(sweep.cells()) == 1
    assert FrozenCell.read(sweep.cells()[0].cell_file).config["resources"]["timeout_s"] == 60.0


def test_a_runs_directory_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    request = compose([])
    cells = resolve_all(request.cells, CPU)
    with pytest.raises(UserError, match=r"runs_dir=.*file: records cannot be written there"):
        freeze(make_plan(request, cells, {}), cells, tmp_path / "file")


def test_glob_names_the_options_of_a_group() -> None:
    cells = compose(["batch=glob(*,exclude=[l*,group*,requests*])"]).cells
    assert {cell.config["batch"]["name"] for cell in cells} == {"medium", "small"}


def test_the_device_may_be_chosen_by_its_type(tmp_path: Path) -> None:
    chosen = resolve_all(compose(["device.type=cpu"]).cells, GPU)[0]
    assert chosen.identity == resolve_all(compose(["device=cpu"]).cells, GPU)[0].identity


def test_a_check_that_cannot_be_imported_is_one_line(tmp_path: Path) -> None:
    mine = tmp_path / "experiment"
    mine.mkdir()
    shipped = yaml.safe_load((CONF / "experiment" / "rollout_throughput.yaml").read_text())
    values = {key: shipped[key] for key in ("_target_", "warmup", "repeats")}
    (mine / "mine.yaml").write_text(yaml.safe_dump(values | {"name": "mine", "_check_": "no_such_package.check"}))
    with pytest.raises(RequestErrors, match=r"experiment\._check_=no_such_package\.check: cannot be imported"):
        resolve_all(compose(["experiment=mine"], str(tmp_path)).cells, CPU)


def test_a_damaged_frozen_cell_is_written_again(tmp_path: Path) -> None:
    request = compose([])
    cells = resolve_all(request.cells, CPU)
    plan = make_plan(request, cells, {})
    sweep, _ = freeze(plan, cells, tmp_path)
    file = sweep.cells()[0].cell_file
    file.write_text(file.read_text()[:100])
    with pytest.raises(UnreadableDocument):
        FrozenCell.read(file)
    freeze(plan, cells, tmp_path)
    assert FrozenCell.read(file).identity == cells[0].identity


@pytest.mark.parametrize("settled", [False, True])
def test_a_frozen_cell_that_was_changed_by_hand_is_written_again(tmp_path: Path, settled: bool) -> None:
    """Even of a cell that is not to be changed: it is no longer what was submitted or measured."""
    request = compose([])
    cells = resolve_all(request.cells, CPU)
    plan = make_plan(request, cells, {})
    sweep, _ = freeze(plan, cells, tmp_path)
    file = sweep.cells()[0].cell_file
    whole = file.read_text()
    assert load_frozen(file)[1] == cells[0].cell
    file.write_text(whole.replace("seed: 0", "seed: 1"))
    with pytest.raises(UnreadableDocument, match="was changed after it was frozen"):
        load_frozen(file)
    freeze(plan, cells, tmp_path, lambda _: settled)
    assert file.read_text() == whole


def test_editing_a_configuration_file_changes_no_frozen_cell(tmp_path: Path) -> None:
    """A user's own config group is edited while the cell waits: the cell keeps what it was planned with."""
    mine = tmp_path / "conf" / "batch"
    mine.mkdir(parents=True)
    values = yaml.safe_load((CONF / "batch" / "small.yaml").read_text()) | {"name": "mine"}
    (mine / "mine.yaml").write_text(yaml.safe_dump(values))
    request = compose(["batch=mine"], str(tmp_path / "conf"))
    cells = resolve_all(request.cells, CPU)
    sweep, _ = freeze(make_plan(request, cells, {}), cells, tmp_path / "runs")
    (mine / "mine.yaml").write_text(yaml.safe_dump(values | {"group_size": 8}))
    again = compose(["batch=mine"], str(tmp_path / "conf"))
    edited = resolve_all(again.cells, CPU)
    assert edited[0].identity != cells[0].identity
    freeze(make_plan(again, edited, {}), edited, tmp_path / "runs")
    frozen = FrozenCell.read(sweep.cell(cells[0].cell_id).cell_file)
    assert frozen.config["batch"]["group_size"] == 4


def test_a_sweep_file_and_the_command_line_make_one_grid(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "union:\n- grid: {precision: [fp32, bf16], seed: [0, 1]}\n- grid: {precision: [bf16, fp64], seed: [1, 2]}\n"
    )
    whole = compose([f"+sweeps={file}"])
    assert whole.sweep is not None and whole.sweep.name == "mine"
    assert len(whole.cells) == 7  # bf16, seed 1 stands in both grids and once in the sweep
    narrowed = compose([f"+sweeps={file}", "precision=fp16", "batch=small,medium"])
    assert [c.overrides for c in narrowed.cells][:2] == [
        ["precision=fp16", "seed=0", "batch=small"],
        ["precision=fp16", "seed=0", "batch=medium"],
    ]
    assert len(narrowed.cells) == 6


def test_a_sweep_files_keys_are_checked_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("grid: {precison: [fp32], batch: [tiny]}\n")
    with pytest.raises(RequestErrors) as caught:
        compose([f"+sweeps={file}"])
    text = "\n".join(caught.value.problems)
    assert "precison is not a configuration key; did you mean precision?" in text
    assert "batch=tiny" in text


def test_interpolations_become_literals() -> None:
    cell = compose(["seed=3", "cohort=${seed}"]).cells[0]
    assert cell.config["cohort"] == 3


def test_a_circular_interpolation_is_one_line() -> None:
    assert len(problems_of("seed=${cohort}", "cohort=${seed}")) >= 1


@pytest.mark.parametrize(
    ("definition", "overrides", "said"),
    [
        ("list: [{precision: fp32}, {batch: small}]", [], "precision=fp32 and batch=small are the same cell"),
        ("grid: {rollout.temperature: [1, 1.0]}", [], "rollout.temperature=1 and rollout.temperature=1.0 are the same"),
        ("grid: {resources.timeout_s: [100, 200]}", [], "resources.timeout_s=100 and resources.timeout_s=200 are the"),
        ("grid: {device: [auto, cpu]}", [], "device=auto and device=cpu are the same cell on this machine; a sweep"),
        (
            "grid: {device: [auto, cpu]}\ncompare: device\nblocks: ABBA",
            [],
            "device=auto block=0 and device=cpu block=0 are the same cell on this machine (1 more pairs are, too)",
        ),
        (
            "union: [{grid: {precision: fp32, batch: small}}, {grid: {batch: small, precision: fp32}}]\n"
            "sample: {size: 2, seed: 0}",
            [],
            "a sample of 2 cannot be drawn from 1 cell",
        ),
        ("grid: {precision: [fp32, bf16]}\ncohorts: 2", ["cohort=0,0"], "cohort=0 stands twice"),
        ("list: [{batch: small}, {batch: small, seed: 1}]", ["seed=1"], "two cells of a list are the same"),
    ],
)
def test_cells_of_one_part_that_are_the_same_are_an_error(
    tmp_path: Path, definition: str, overrides: list[str], said: str
) -> None:
    (tmp_path / "mine.yaml").write_text(definition)
    assert said in "\n".join(problems_of(f"+sweeps={tmp_path / 'mine.yaml'}", *overrides))


def test_the_parts_of_a_union_may_overlap(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("union: [{grid: {precision: fp32}}, {grid: {batch: small, precision: fp32}}]")
    assert len(resolve_all(compose([f"+sweeps={tmp_path / 'mine.yaml'}"]).cells, CPU)) == 1
    (tmp_path / "mine.yaml").write_text(
        "union: [{grid: {precision: fp32}}, {grid: {batch: small, rollout.temperature: [1, 1.0]}}]"
    )
    assert "rollout.temperature=1.0 are the same" in "\n".join(problems_of(f"+sweeps={tmp_path / 'mine.yaml'}"))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["experiment.repeats=1" + "0" * 310], "input should be less than or equal to 1099511627776"),
        (["rollout.max_new_tokens=1" + "0" * 320], "input should be less than or equal to 1099511627776"),
        (["experiment.warmup=1" + "0" * 310], "input should be less than 9223372036854775808"),
        (["task.prompt_length=100000000000"], "need 100000000032 positions, but model.max_position_embeddings=512"),
        (["prompt.shots=100000"], "prompt.shots=100000: input should be less than or equal to 100"),
        (
            ["batch.prompts_per_step=100000000", "batch.group_size=10", "batch.minibatch_responses=10"],
            "batch: prompts_per_step=100000000 x group_size=10 = 1000000000 responses; 1000000 is the most of a step",
        ),
    ],
)
def test_what_no_machine_does_is_refused_and_not_planned(overrides: list[str], said: str) -> None:
    assert said in "\n".join(problems_of("task=random_tokens", *overrides))


def test_random_prompts_are_not_drawn_to_be_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    from scalerlt.experiments import requests

    monkeypatch.setattr(requests, "random_prompts", None)
    assert len(resolve_all(compose(["task=random_tokens", "batch.prompts_per_step=40000"]).cells, CPU)) == 1
    assert "need 513 positions" in problems_of("task=random_tokens", "task.prompt_length=481")[0]
    assert len(resolve_all(compose(["task=random_tokens", "task.prompt_length=480"]).cells, CPU)) == 1


def test_a_key_of_an_option_that_only_the_sweep_names_can_be_overridden(tmp_path: Path) -> None:
    sweep = tmp_path / "mine.yaml"
    sweep.write_text("grid:\n  experiment: gsm8k_reward\n  algorithm: grpo\n  seed: [0, 1]\n")
    request = compose([f"+sweeps={sweep}", "experiment.steps=7"])
    assert [cell.config["experiment"]["steps"] for cell in request.cells] == [7, 7]
    with pytest.raises(RequestErrors, match=r"did you mean experiment\.steps"):
        compose([f"+sweeps={sweep}", "experiment.stps=7"])
