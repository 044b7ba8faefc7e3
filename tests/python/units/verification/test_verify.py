"""python -m torchdion verify: what passes on a working installation, and that each of its checks can fail."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from torchdion import _C
from torchdion.table import ALGORITHMS
from torchdion.verification.checks import _dimensions_in_use, check
from torchdion.verification.command import main, parser, refused, trainings_of
from torchdion.verification.launch import RanksFailed, launch
from torchdion.verification.network import MODELS, Sizes
from torchdion.verification.observed import Digest, Observed
from torchdion.verification.paper import has_paper_form, train_as_published
from torchdion.verification.run import State, Training
from torchdion.verification.transport import Transport, meet

ONE = ["--orientation", "right", "--orthonormalize", "auto"]
ENDLESS = [*ONE, "--mesh", "dp=2", "--steps", "99999"]
CHECKS = (
    "one process against the papers' algorithms",
    "weights against one process",
    "momenta (mean over dp) against one process",
    "Q against one process",
    "copies that differ in any bit",
    "ranks where check_replicas() raises",
    "axes where ranks' collectives differ",
    "counters that differ from the formulas",
    "one process after the mesh's checkpoint",
    "mesh after one process's checkpoint",
)


def started(*arguments: str, code: str = "", **options: Any) -> subprocess.Popen[str]:
    """The command, or code that calls it; a Ctrl-C reaches it also where the tests run in a shell's background."""
    program = ["-c", code] if code else ["-m", "torchdion", "verify"]
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def results(table: str) -> dict[str, str]:
    """By check, of a table of one training."""
    found = re.findall(r"^right, auto  (.*?)  .*  (pass|FAIL)$", table, re.MULTILINE)
    return dict(found)


def test_a_working_installation_passes_every_check() -> None:
    table, errors = (process := started("--mesh", "dp=2,fs=2", "--steps", "4", *ONE)).communicate(timeout=60)
    assert process.returncode == 0, errors
    assert results(table) == dict.fromkeys(CHECKS, "pass")
    assert "10 of 10 checks pass" in table
    errors = [float(number) for number in re.findall(r"one process +(\S+) +1e-10 ", table)]
    assert len(errors) == 3
    assert all(0 < error < 1e-12 for error in errors)  # exactly zero were a run compared with itself
    assert all(
        int(number.replace(",", "")) > 100 for number in re.findall(r"\((\S+) (?:collectives|elements)\)", table)
    )


@pytest.mark.long
@pytest.mark.parametrize("optimizer", [*(name for name in ALGORITHMS if name != "dion"), "double_dion --delayed"])
def test_every_other_optimizer_passes_every_check_too(optimizer: str) -> None:
    process = started("--mesh", "dp=2,fs=2", "--steps", "4", "--optimizer", *optimizer.split())
    table, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    checks = 8 + len(ALGORITHMS[optimizer.split()[0]].states)
    assert f"{checks} of {checks} checks pass" in table
    errors = [float(number) for number in re.findall(r"one process +(\S+) +1e-10 ", table)]
    assert len(errors) == checks - 7
    assert all(error < 1e-12 for error in errors)
    assert any(errors)  # exactly zero were a run compared with itself


DRIFTING = """
import sys, torch, torchdion, torchdion.verification.command as command
right = torchdion.Dion.step
def wrong(self, closure=None):
    right(self)
    if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
        self.param_groups[0]["params"][0].data.mul_(1 + 1e-9)
torchdion.Dion.step = wrong
sys.exit(command.main(sys.argv[1:]))
"""


def test_a_rank_that_drifts_apart_is_found() -> None:
    table, errors = (process := started("--mesh", "dp=2", "--steps", "4", *ONE, code=DRIFTING)).communicate(timeout=60)
    assert process.returncode == 1, errors
    failed = {name for name, result in results(table).items() if result == "FAIL"}
    assert failed >= {CHECKS[1], CHECKS[4], CHECKS[5]}
    assert not failed & {CHECKS[6], CHECKS[7]}


FORGETTING = """
import sys, torchdion.verification.run as run, torchdion.verification.command as command
right = run.set_state_dict
def wrong(network, optimizer, **states):
    right(network, optimizer, **states)
    for state in optimizer.state.values():
        state["momentum"].mul_(1 + 1e-6)
run.set_state_dict = wrong
sys.exit(command.main(sys.argv[1:]))
"""


def test_a_checkpoint_that_brings_back_another_momentum_is_found() -> None:
    table, errors = (process := started("--steps", "3", *ONE, code=FORGETTING)).communicate(timeout=60)
    assert process.returncode == 1, errors
    assert {name for name, result in results(table).items() if result == "FAIL"} == set(CHECKS[8:])


TRAINING = Training("made up", Sizes(dp=2, fs=2), MODELS["small"], 1, True, {})


def state() -> State:
    eye = torch.eye(2, dtype=torch.float64)
    states = {"momentum": {"w": eye.clone()}, "Q": {"w": eye.clone()}}
    return State(start={"w": 0 * eye}, weights={"w": eye.clone()}, states=states)


def observations() -> list[Observed]:
    """Of four ranks that do all right; fs cuts the weight."""
    return [
        Observed(
            rank=rank,
            state=state(),
            digests={"w": Digest(f"piece {rank % 2}", ("fs",), False), "own": Digest(f"{rank}", ("fs",), True)},
            replicas="",
            issued={"dp": [("all_reduce", 4)], "fs": [("all_reduce", 2), ("all_gather", 2)]},
            traffic=[({"dp": 4, "fs": 4}, {"dp": 4, "fs": 4})],
        )
        for rank in range(4)
    ]


def failed(change: Callable[[Observed], Any], training: Training = TRAINING) -> set[str]:
    """The checks that miss after a change to the last rank."""
    observed = observations()
    change(observed[-1])
    return {row.what for row in check(training, observed, state(), state().weights) if not row.passes}


def test_right_observations_pass() -> None:
    assert failed(lambda rank: None) == set()


MISSES: dict[str, tuple[str, Callable[[Observed], Any]]] = {
    "weights off by 1e-9": (CHECKS[1], lambda rank: rank.state.weights["w"].mul_(1 + 1e-9)),
    "weights of NaN": (CHECKS[1], lambda rank: rank.state.weights["w"].fill_(torch.nan)),
    "weights of another shape": (CHECKS[1], lambda rank: rank.state.weights.update(w=torch.ones(3))),
    "momenta off": (CHECKS[2], lambda rank: rank.state.states["momentum"]["w"].mul_(1 - 1e-9)),
    "Q with another sign": (CHECKS[3], lambda rank: rank.state.states["Q"]["w"].neg_()),
    "a copy with other bytes": (CHECKS[4], lambda rank: rank.digests.update(w=Digest("other", ("fs",), False))),
    "check_replicas() raises": (CHECKS[5], lambda rank: setattr(rank, "replicas", "replicas differ in w")),
    "another order": (CHECKS[6], lambda rank: rank.issued["fs"].reverse()),
    "one collective more": (CHECKS[6], lambda rank: rank.issued["dp"].append(("all_reduce", 4))),
    "another size": (CHECKS[6], lambda rank: rank.issued.update(dp=[("all_reduce", 5)])),
    "silence on an axis": (CHECKS[6], lambda rank: rank.issued.pop("dp")),
    "one element more": (CHECKS[7], lambda rank: rank.traffic.__setitem__(0, ({"dp": 5, "fs": 4}, {"dp": 4, "fs": 4}))),
    "an axis without a formula": (CHECKS[7], lambda rank: rank.traffic[0][0].update(tp=1)),
    "nothing sent": (CHECKS[7], lambda rank: rank.traffic[0][0].clear()),
    "a step not counted": (CHECKS[7], lambda rank: rank.traffic.clear()),
}


@pytest.mark.parametrize(("row", "change"), MISSES.values(), ids=MISSES)
def test_each_check_misses_what_it_is_for_and_nothing_else(row: str, change: Callable[[Observed], Any]) -> None:
    assert failed(change) == {row}


def test_silence_of_all_ranks_is_no_agreement() -> None:
    observed = observations()
    for rank in observed:
        rank.issued.clear()
        rank.traffic[:] = [({}, {})]
    assert {row.what for row in check(TRAINING, observed, state(), state().weights) if not row.passes} == {
        CHECKS[6],
        CHECKS[7],
    }


def test_copies_with_averaged_gradients_speak_where_the_algorithm_shares_its_work() -> None:
    for shards in ("fs", "tp"):
        observed = observations()
        for rank in observed:
            rank.issued = {shards: rank.issued["fs"]}
            rank.digests = {name: replace(digest, cut_by=(shards,)) for name, digest in rank.digests.items()}
        silent = {}
        for algorithm in ("dion", "muon"):
            training = replace(TRAINING, sizes=Sizes(dp=2, **{shards: 2}), compress=False, algorithm=algorithm)
            rows = check(training, observed, state(), state().weights)
            silent[algorithm] = {row.what for row in rows if not row.passes}
        assert silent == {"dion": set(), "muon": {CHECKS[6]}}


def test_an_engine_that_departs_from_the_papers_is_found() -> None:
    published = {name: X * (1 + 1e-9) for name, X in state().weights.items()}
    rows = check(TRAINING, observations(), state(), published)
    assert {row.what for row in rows if not row.passes} == {CHECKS[0]}


def test_every_algorithm_of_the_library_is_compared_with_its_paper_and_one_without_is_not() -> None:
    assert all(map(has_paper_form, ALGORITHMS))
    assert not has_paper_form("row_sign")
    rows = check(TRAINING, observations(), state(), None)
    assert [row.what for row in rows] == list(CHECKS[1:8])
    assert train_as_published(replace(TRAINING, algorithm="row_sign")) is None


def test_the_dimensions_on_which_an_algorithm_must_speak_are_those_of_its_plan() -> None:
    sizes = {"all": Sizes(2, 2, 2), "fs": Sizes(fs=2), "tp": Sizes(tp=3), "dp": Sizes(dp=2)}
    for algorithm in ALGORITHMS:
        of_entries, shares = not ALGORITHMS[algorithm].takes_matrices, ALGORITHMS[algorithm].shares_among_copies
        cut = set() if of_entries else {"fs", "tp"}
        expected = {
            "all": cut | ({"dp"} if shares else set()), "fs": cut & {"fs"}, "tp": cut & {"tp"}, "dp": set()
        }  # fmt: skip
        for name, of_mesh in sizes.items():
            training = replace(TRAINING, sizes=of_mesh, compress=False, algorithm=algorithm)
            assert _dimensions_in_use(training) == expected[name], (algorithm, name)
            if of_mesh.dp > 1:
                assert _dimensions_in_use(replace(training, compress=True)) == expected[name] | {"dp"}


def test_weights_that_never_moved_prove_nothing() -> None:
    alone = state()
    alone.start = alone.weights
    assert CHECKS[1] in {row.what for row in check(TRAINING, observations(), alone, state().weights) if not row.passes}


WRONG_ARGUMENTS = {
    "--mesh dp=2,xx=2": "argument --mesh: must have dimensions among dp, fs and tp, got 'xx'",
    "--mesh dp=0": "argument --mesh: must have at least one rank along each dimension, got dp=0",
    "--mesh dp": "argument --mesh: must be sizes such as dp=2,fs=4,tp=8, each name once, got 'dp'",
    "--steps 0": "argument --steps: must be an integer ≥ 1, got '0'",
    "--time-limit nan": "argument --time-limit: must be seconds above 0, at most a day, got 'nan'",
    "--rank-fraction 2": "argument --rank-fraction: must be in (0, 0.5], got 2.0",
    "--checkpoints /nowhere": "argument --checkpoints: must be a folder that can be written to, got /nowhere",
    "--mesh dp=2 --backend nccl": "argument --backend: nccl needs a GPU for each of the 2 ranks, and 0 were found",
    "--backend nccl --device cpu": "argument --device: must be cuda with nccl, got cpu",
    "--delayed": "argument --delayed: is an option of double_dion, not of dion",
    "--mesh dp=2 --device cuda": "argument --device: must be cpu, as no GPU was found, got cuda",
}


@pytest.mark.parametrize(("arguments", "sentence"), WRONG_ARGUMENTS.items())
def test_wrong_arguments_are_refused_in_one_sentence(
    arguments: str, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    try:
        status = main(arguments.split())
    except SystemExit as exit:
        status = exit.code  # type: ignore[assignment]
    assert (status, capsys.readouterr().err) == (2, f"python -m torchdion verify: {sentence}\n")


def test_torchrun_must_have_started_as_many_ranks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert main(["--mesh", "dp=2"]) == 2
    assert capsys.readouterr().err == (
        "python -m torchdion verify: argument --mesh: must have torchrun's 3 ranks, got 2\n"
    )


GPU_FOR_EACH = "argument --backend: nccl needs a GPU for each of the {} ranks, and {} were found"
NO_NCCL = "argument --backend: must be gloo, as this torch was built without NCCL, got nccl"
NO_KERNELS = "argument --device: must be cpu, as torchdion was built without nvcc, got cuda"
TRANSPORTS: dict[str, tuple[str, int, bool, bool, dict[str, str], str]] = {
    # arguments, GPUs, whether NCCL and kernels were built, torchrun's words, the refusal
    "a GPU for each": ("--backend nccl", 8, True, True, {}, ""),
    "a GPU too few": ("--backend nccl", 7, True, True, {}, GPU_FOR_EACH.format(8, 7)),
    "on two machines": ("--backend nccl", 4, True, True, {"LOCAL_WORLD_SIZE": "4"}, ""),
    "too few on one of two": ("--backend nccl", 3, True, True, {"LOCAL_WORLD_SIZE": "4"}, GPU_FOR_EACH.format(4, 3)),
    "without NCCL": ("--backend nccl", 8, False, True, {}, NO_NCCL),
    "without kernels": ("--backend nccl", 8, True, False, {}, NO_KERNELS),
    "gloo on one GPU": ("--device cuda", 1, False, True, {}, ""),
    "gloo without kernels": ("--device cuda", 1, True, False, {}, NO_KERNELS),
    "gloo on the CPU": ("", 0, False, False, {}, ""),
}


@pytest.mark.parametrize(("arguments", "gpus", "nccl", "kernels", "torchrun", "sentence"), TRANSPORTS.values(),
                         ids=TRANSPORTS)  # fmt: skip
def test_what_moves_the_tensors_must_be_there(
    arguments: str,
    gpus: int,
    nccl: bool,
    kernels: bool,
    torchrun: dict[str, str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl)
    monkeypatch.setattr(_C, "has_kernels_for", lambda device: device == "cpu" or kernels)
    mesh = ["--mesh", "dp=2,fs=2,tp=2", "--checkpoints", str(tmp_path)]
    options = parser().parse_args([*mesh, *arguments.split()])
    assert refused(options, torchrun) == sentence
    on_cuda = arguments != ""
    assert {training.device for training in trainings_of(options)} == {"cuda" if on_cuda else "cpu"}


@pytest.mark.parametrize(
    ("transport", "local_rank", "gpus", "chosen"),
    [
        (Transport(), 3, 8, None),
        (Transport("nccl", "cuda"), 3, 8, 3),
        (Transport("gloo", "cuda"), 3, 8, 3),
        (Transport("gloo", "cuda"), 3, 2, 1),
        (Transport("gloo", "cuda"), 3, 1, 0),
    ],
)
def test_a_rank_takes_the_gpu_of_its_number_before_it_meets_the_others(
    transport: Transport, local_rank: int, gpus: int, chosen: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, Any]] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: calls.append(("set_device", index)))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *args, **how: calls.append((args[0], how)))
    limit = timedelta(seconds=5)
    meet(transport, local_rank, limit, rank=9)
    expected: list[tuple[str, Any]] = [] if chosen is None else [("set_device", chosen)]
    assert calls == [*expected, (transport.backend, {"timeout": limit, "rank": 9})]


def sum_of_ranks(rank: int, first: int) -> tuple[float, list[str]]:
    total = torch.tensor(float(first + rank))
    torch.distributed.all_reduce(total)
    if first < 0:
        raise LookupError(f"{first} is below zero")
    return total.item(), sorted(os.environ.keys() & {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"})


@pytest.mark.long
def test_ranks_for_cuda_start_anew_and_end_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (Transport().start_method, Transport("gloo", "cuda").start_method) == ("fork", "spawn")
    monkeypatch.setattr(Transport, "start_method", "spawn")
    sockets = ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]
    assert launch(sum_of_ranks, 2, (10,), 120.0) == (21.0, sockets)
    with pytest.raises(RanksFailed, match=r"(?s)rank \d raised an error, .*LookupError: -3 is below zero"):
        launch(sum_of_ranks, 2, (-3,), 120.0)
    assert not multiprocessing.active_children()


def children(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A verification that takes too long, and its ranks in the middle of it."""
    process = started(*ENDLESS, env=os.environ | {"TMPDIR": str(tmp_path)})
    deadline = time.monotonic() + 30
    ranks: list[int] = []
    while len(ranks) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        ranks = children(process)
    time.sleep(0.5)
    yield process, ranks
    process.kill()
    process.communicate()


def assert_nothing_is_left(ranks: list[int], folder: Path) -> None:
    assert len(ranks) == 2
    assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]
    assert not [path for path in folder.iterdir() if not path.name.startswith("torchinductor")]  # torch's own cache


@pytest.mark.parametrize(
    ("sent", "to", "status", "sentence"),
    [
        pytest.param(signal.SIGKILL, "rank", 1, "rank 1 died of SIGKILL, and all were ended", marks=pytest.mark.long),
        (signal.SIGINT, "command", 130, "interrupted, and all ranks were ended"),
        pytest.param(signal.SIGTERM, "command", 143, "interrupted, and all ranks were ended", marks=pytest.mark.long),
    ],
)
def test_whatever_ends_it_ends_every_rank_within_seconds(
    endless: tuple[subprocess.Popen[str], list[int]], tmp_path: Path, sent: int, to: str, status: int, sentence: str
) -> None:
    process, ranks = endless
    os.kill(ranks[1] if to == "rank" else process.pid, sent)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == status
    assert errors.startswith(f"python -m torchdion verify: {sentence}")
    assert_nothing_is_left(ranks, tmp_path)


@pytest.mark.long
def test_at_the_time_limit_it_shows_where_the_ranks_are() -> None:
    _, errors = (process := started(*ENDLESS, "--time-limit", "2")).communicate(timeout=60)
    assert process.returncode == 1
    assert "still running at the time limit of 2 s, and all were ended: ranks 0, 1" in errors
    assert "in observe" in errors
