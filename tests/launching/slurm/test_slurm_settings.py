"""hydra/launcher=slurm: what its settings are, and what is said of wrong ones."""

from typing import Any

import pytest
from launching.slurm.slurm_sweeps import BASE, settings_of

from scalerlt.cli import main
from scalerlt.errors import RequestErrors
from scalerlt.planning.hydra_bridge import compose
from scalerlt.planning.launcher import LocalSettings, machine_of, read_launcher
from scalerlt.planning.resolve import resolve_all


def problems_of(**given: Any) -> list[str]:
    with pytest.raises(RequestErrors) as caught:
        read_launcher({**BASE, **given})
    return caught.value.problems


def test_every_wrong_value_is_one_sentence_and_all_are_said() -> None:
    said = problems_of(
        timeout_min="ten",
        partitoin="gpu",
        partition="a\n#SBATCH --account=b",
        mem_gb=-1,
        nodes=0,
        wait="yes",
        pack={"slots": 0, "timd": "shared"},
        env={"A B": "x", "C": None},
        sbatch={"time": 5, "p": "gpu", "output": "log", "cpus_per_task": 3, "gpus": 1, "gpus_per_task": 1},
        setup="module load cuda",
        gres="",
    )
    assert len(set(said)) == len(said) == 18, said
    for start in (
        "hydra.launcher.timeout_min='ten': ",
        "hydra.launcher.partitoin is not a setting of the launcher; did you mean partition?",
        "hydra.launcher.partition='a\\n#SBATCH --account=b': holds a line break",
        "hydra.launcher.mem_gb=-1: ",
        "hydra.launcher.nodes=0: ",
        "hydra.launcher.wait='yes': ",
        "hydra.launcher.pack.slots=0: ",
        "hydra.launcher.pack.timd is not a setting of the launcher; did you mean timed?",
        "hydra.launcher.env.A B: 'A B' is not the name of an environment variable",
        "hydra.launcher.env.C=None: ",
        "hydra.launcher.sbatch.time: set hydra.launcher.timeout_min instead",
        "hydra.launcher.sbatch.p: set hydra.launcher.partition instead",
        "hydra.launcher.sbatch.output: the submission sets this option itself",
        "hydra.launcher.sbatch.cpus_per_task: set hydra.launcher.cpus_per_task instead",
        "hydra.launcher.sbatch.gpus: set hydra.launcher.gpus_per_node instead",
        "hydra.launcher.sbatch.gpus_per_task: set hydra.launcher.gpus_per_node instead",
        "hydra.launcher.setup='module load cuda': ",
        "hydra.launcher.gres='': ",
    ):
        assert sum(problem.startswith(start) for problem in said) == 1, (start, said)


def test_memory_that_slurm_would_read_as_the_whole_node() -> None:
    """sbatch takes --mem=0M for all memory of a node: only a setting that says so asks for it."""
    assert problems_of(mem_gb=0.0009) == [
        "hydra.launcher.mem_gb=0.0009: less than 1 MiB; give GiB, or 0 for all memory of a node"
    ]
    assert settings_of(mem_gb=0).mem_gb == 0 and settings_of(mem_gb=1 / 1024).mem_gb == 1 / 1024


def test_what_does_not_go_together() -> None:
    """A signal before the start would make each start end at once."""
    assert problems_of(timeout_min=5, signal_delay_s=300) == [
        "hydra.launcher.signal_delay_s=300: a job of hydra.launcher.timeout_min=5 lasts 300 s; "
        "the signal has to come after its start"
    ]
    assert settings_of(timeout_min=5, signal_delay_s=299).signal_delay_s == 299
    said = problems_of(pack={"slots": 4}, cpus_per_task=2, gpus_per_node=3, nodes=2, use_srun=False)
    assert [problem.split(":")[0] for problem in said] == [
        "hydra.launcher.cpus_per_task=2",
        "hydra.launcher.gpus_per_node=3",
        "hydra.launcher.nodes=2",
        "hydra.launcher.nodes=2",
    ]


def test_every_slot_has_a_gpu_however_they_are_asked_for() -> None:
    need = "hydra.launcher.pack.slots=4 items at once need at least 4; each gets its own"
    assert problems_of(pack={"slots": 4}, gres="gpu:fake:2") == [f"hydra.launcher.gres=gpu:fake:2: {need}"]
    assert problems_of(pack={"slots": 4}, gpus_per_node=2) == [f"hydra.launcher.gpus_per_node=2: {need}"]
    assert settings_of(pack={"slots": 4}, gres="gpu:fake:2,gpu:a100:2").gpus == 4
    assert settings_of(pack={"slots": 4}, gres="lscratch:2").gpus == 0
    assert problems_of(gpus_per_node=1, gres="gpu:2") == [
        "hydra.launcher.gres=gpu:2: hydra.launcher.gpus_per_node=1 asks for GPUs, too; set one of them to null"
    ]


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"gpus_per_node": 2, "gres": "lscratch:20"}, {"gres": "lscratch:20"}),
        ({"gres": "gpu:fake:2(S:0,1),lscratch:20"}, {"gres": "lscratch:20"}),
        ({"gres": "gpu"}, {}),
        (
            {
                "gpus_per_node": 1,
                "sbatch": {"gpu-bind": "closest", "mem_per_gpu": "8G", "reservation": "gpu"},
                "srun_args": ["--gpu-freq=low", "--gpus=1", "--mpi=none"],
            },
            {"sbatch": {"reservation": "gpu"}, "srun_args": ["--mpi=none"]},
        ),
        (
            {
                "gpus_per_node": 1,
                "sbatch": {"tres-per-task": "gres/gpu:1", "reservation": "gpu"},
                "srun_args": ["--gpus-per-task", "1", "--mem", "2G", "-G1", "--gres=gpu:1", "--gres", "gpu:1", "-n1"],
            },
            {"sbatch": {"reservation": "gpu"}, "srun_args": ["--mem", "2G", "-n1"]},
        ),
        ({"gres": "mps:100", "sbatch": {"gpu-bind": "none"}}, {"gres": "mps:100", "sbatch": {"gpu-bind": "none"}}),
    ],
)
def test_what_a_job_without_gpus_asks_for(given: dict[str, Any], left: dict[str, Any]) -> None:
    assert settings_of(**given).without_gpus() == settings_of(**left)


def test_what_the_hydra_plugin_rejects_is_taken() -> None:
    settings = settings_of(
        mem_gb=1.5,
        python="apptainer exec image.sif python",
        srun_args=["--mpi=none"],
        nodelist="n[1-4]",
        use_srun=False,
        account=4711,
        gpus_per_node=0,
        sbatch={"mail_type": "END", "nice": 100, "exclusive": True, "licenses": None},
    )
    assert (settings.account, settings.sbatch["mail-type"], settings.sbatch["nice"]) == ("4711", "END", "100")


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu", 1),
        ("gpu:2", 2),
        ("gpu:a100", 1),
        ("gpu:a100:4", 4),
        ("lscratch:20,gpu:h100:8", 8),
        ("gpu:fake:2(S:0,1)", 2),
        ("gpu:3g.20gb:2", 2),
        ("mps:100", 0),
    ],
)
def test_gpus_of_a_gres(gres: str, gpus: int) -> None:
    assert settings_of(gres=gres).gpus == gpus


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("partition=gpu,short", "gpu,short"),
        ("nodelist=n[1-4],m7", "n[1-4],m7"),
        ("constraint=a100|h100", "a100|h100"),
        ("gres=gpu:2", "gpu:2"),
        ("dependency=afterok:3,afterany:4", "afterok:3,afterany:4"),
        ("python=apptainer exec image.sif python", "apptainer exec image.sif python"),
        ("comment='two words'", "two words"),
        ("qos=null", None),
        ("account=4711", 4711),
        ("srun_args=[--export=ALL]", ["--export=ALL"]),
        ("srun_args=[--mpi=pmix, --cpu-bind=cores]", ["--mpi=pmix", "--cpu-bind=cores"]),
        ("srun_args=['--export=ALL,X=1']", ["--export=ALL,X=1"]),
        ("setup=[source venv/bin/activate && export A=1]", ["source venv/bin/activate && export A=1"]),
        ("setup=[module load cuda,source venv/bin/activate]", ["module load cuda", "source venv/bin/activate"]),
        ("setup=['export A=1,2','export B=3']", ["export A=1,2", "export B=3"]),
        ("sbatch.mail-type=END,FAIL", {"mail-type": "END,FAIL"}),
        ("sbatch.exclusive=true", {"exclusive": True}),
    ],
)
def test_slurms_own_texts_need_no_quotes(given: str, value: str | int | None) -> None:
    launcher = compose(["hydra/launcher=slurm", f"hydra.launcher.{given}"]).launcher
    assert launcher[given.partition("=")[0].partition(".")[0]] == value


def test_variables_hold_what_is_given() -> None:
    given = ["NCCL_SOCKET_IFNAME=ib0,ib1", "HF_HUB_OFFLINE=0", "FLAGS=--a=b -c"]
    launcher = compose(["hydra/launcher=slurm", *(f"+hydra.launcher.env.{text}" for text in given)]).launcher
    assert launcher["env"] == {"HF_HUB_OFFLINE": 0, "NCCL_SOCKET_IFNAME": "ib0,ib1", "FLAGS": "--a=b -c"}


@pytest.mark.parametrize("command", ["plan", "sweep", "run"])
@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("hydra.launcher.timeout_min=1,2", "hydra.launcher.timeout_min has one value for all cells, not 1, 2; quote"),
        ("hydra.verbose=1,2", "hydra.verbose has one value for all cells, not 1, 2; quote"),
        ("hydra/launcher=slurm,slurm_gpu", "hydra/launcher has one value for all cells, not slurm, slurm_gpu; quote"),
        ("hydra.launcher.srun_args=[--export=ALL,X]", "'hydra.launcher.srun_args=[--export=ALL,X]' is not an override"),
        ("hydra.launcher.setup=[a && b,c]", "'hydra.launcher.setup=[a && b,c]' is not an override"),
    ],
)
def test_what_hydra_would_refuse_is_one_sentence(
    command: str, override: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, override]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: {said}") and shown.count("\n") == 1 and "quote" in shown


def test_a_launcher_of_another_kind() -> None:
    assert isinstance(read_launcher({"_target_": "x.y", "kind": "local", "infer_oom": True}), LocalSettings)
    with pytest.raises(RequestErrors, match=r"partition is not a setting of hydra/launcher=local; .*=slurm has it"):
        read_launcher({"_target_": "x.y", "kind": "local", "partition": "gpu"})
    with pytest.raises(RequestErrors, match="there are local, slurm"):
        read_launcher({"_target_": "x.y", "kind": "slrm"})


def test_wrong_settings_are_said_with_all_else_that_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "plan",
                "hydra/launcher=slurm_gpu",
                "hydra.launcher.partitoin=gpu",
                "hydra.launcher.signal_delay_s=soon",
                "precision=fp7",
                "seed=-1",
            ]
        )
        == 2
    )
    said = capsys.readouterr().err
    assert said.count("error: ") == said.count("\n") == 4
    assert "hydra.launcher.partitoin is not a setting of the launcher; did you mean partition?" in said
    assert "hydra.launcher.signal_delay_s='soon': " in said
    assert "precision=fp7" in said and "seed=-1" in said


def test_a_single_cell_is_not_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hydra/launcher=slurm"]) == 2
    assert "use scalerlt sweep" in capsys.readouterr().err


def test_cells_are_planned_for_the_nodes_and_not_for_this_host() -> None:
    """A login node without a GPU plans for jobs with one, and for nodes of which it is none."""
    request = compose(["hydra/launcher=slurm_gpu", "device=cuda"])
    [cell] = resolve_all(request.cells, machine_of(request.launcher))
    assert cell.unsupported is None
    request = compose(["hydra/launcher=slurm_gpu", "device=auto"])
    assert resolve_all(request.cells, machine_of(request.launcher))[0].cell.device.type == "cuda"
    request = compose(["hydra/launcher=slurm", "device=cuda"])
    [cell] = resolve_all(request.cells, machine_of(request.launcher))
    assert cell.unsupported is not None and "hydra.launcher.gpus_per_node=None" in cell.unsupported
    assert "a node has none" in cell.unsupported and "this machine" not in cell.unsupported


def test_cells_that_are_the_same_on_a_node(capsys: pytest.CaptureFixture[str]) -> None:
    """And not on this host, which may have no GPU where the nodes have one."""
    request = compose(["hydra/launcher=slurm", "device=auto,cpu"])
    with pytest.raises(RequestErrors, match=r"device=auto and device=cpu are the same cell on a node; a sweep"):
        resolve_all(request.cells, machine_of(request.launcher))
    assert main(["plan", "hydra/launcher=slurm_gpu", "device=auto,cpu", "presicion=fp32"]) == 2
    assert capsys.readouterr().err.count("error: ") == 1
    assert main(["plan", "hydra/launcher=slurm", "device=auto,cpu", "presicion=fp32"]) == 2
    assert "are the same cell on a node;" in capsys.readouterr().err


def test_the_users_account_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch itself is called without SBATCH_*, so the settings name it, and the submission records it."""
    monkeypatch.setenv("SBATCH_ACCOUNT", "physics")
    monkeypatch.setenv("SBATCH_PARTITION", "interactive")
    launcher = compose(["hydra/launcher=slurm"]).launcher
    assert (launcher["account"], launcher["partition"]) == ("physics", None)
    assert compose(["hydra/launcher=slurm", "hydra.launcher.account=chemistry"]).launcher["account"] == "chemistry"
