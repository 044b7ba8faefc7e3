"""examples/gpt/checkpoint.py and log.py: files that are whole or absent, whenever the process dies."""

import errno
import os
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import checkpoint
import errors
import log
import pytest
import sharded
import torch
import torch.distributed as dist
from errors import Problem
from ranks import run_ranks

import torchdion


def state(step: int) -> dict[str, Any]:
    return {"step": step, "weight": torch.full((100,), float(step)), "betas": (0.9, 0.95)}


def fail(*_: object) -> None:
    raise OSError("disk full")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files cannot grow beyond `size` bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_holds_what_was_saved(tmp_path: Path) -> None:
    loaded = checkpoint.load(checkpoint.save(tmp_path, 3, state(3), keep=2))
    assert torch.equal(loaded["weight"], state(3)["weight"])
    assert (loaded["step"], loaded["betas"]) == (3, (0.9, 0.95))


def test_a_failure_half_way_leaves_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    checkpoint.write_whole(path, lambda file: file.write(b"old"))

    def half(file: Any) -> None:
        file.write(b"ne")
        fail()

    with pytest.raises(Problem, match=f"^{path} cannot be written: disk full$"):
        checkpoint.write_whole(path, half)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failure_while_saving_leaves_the_older_checkpoint_loadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    checkpoint.save(tmp_path, 1, state(1), keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(*((os, "fsync") if broken == "fsync" else (Path, "replace")), fail)
        with pytest.raises(Problem, match=r"checkpoint-00000002.pt cannot be written: disk full$"):
            checkpoint.save(tmp_path, 2, state(2), keep=1)
    newest = checkpoint.newest(tmp_path, fail)
    assert newest is not None
    assert newest["step"] == 1


@pytest.mark.parametrize("size", [0, 10_000, 100_000])
def test_a_disk_that_fills_up_is_one_sentence_and_the_older_checkpoint_stays(tmp_path: Path, size: int) -> None:
    kept = checkpoint.save(tmp_path, 1, state(1), keep=1)
    with largest_file(size), pytest.raises(Problem, match=r"checkpoint-00000002.pt cannot be written: File too large$"):
        checkpoint.save(tmp_path, 2, {"first": torch.zeros(20_000), "second": torch.zeros(20_000)}, keep=1)
    assert list(tmp_path.iterdir()) == [kept]
    assert checkpoint.load(kept)["step"] == 1


def test_an_error_that_is_not_the_disks_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="of another kind"), errors.writing(tmp_path):
        raise RuntimeError("of another kind")


def test_a_log_on_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    sentence = r"log.jsonl cannot be written: File too large$"
    with (
        pytest.raises(Problem, match=sentence) as problem,
        largest_file(100),
        log.Log(tmp_path, 0, tensorboard=False) as out,
    ):
        for step in range(9):
            out.write("train", step, loss=0.1)
    assert problem.value.code == 1
    assert [record["step"] for record in log.read(tmp_path / log.NAME)] == [0, 1]


def test_a_checkpoint_of_many_processes_on_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    model = torch.nn.Linear(200, 200)
    optimizer = torchdion.Dion(model.parameters())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with largest_file(10_000), pytest.raises(Problem, match=rf"^{tmp_path} cannot be written: File too large$"):
            sharded.write(tmp_path, model, optimizer, {})
    finally:
        dist.destroy_process_group()


def refused_on_the_first(rank: int, world_size: int, folder: Path) -> None:
    def write() -> None:
        assert rank == 0
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(Problem, match=rf"^{folder} cannot be written: No space left on device$") as problem:
        sharded.on_first(folder, write)
    assert problem.value.code == 1
    sharded.on_first(folder, lambda: (folder / "written").touch())
    assert (folder / "written").exists()


def test_what_the_disk_refuses_the_first_process_is_one_sentence_on_all(tmp_path: Path) -> None:
    run_ranks(refused_on_the_first, 2, tmp_path, time_limit=30)


def test_the_file_is_flushed_to_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, events = tmp_path / "file", []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: (events.append(f"fsync {path.exists()}"), fsync(number)))
    monkeypatch.setattr(Path, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    checkpoint.write_whole(path, lambda file: file.write(b"new"))
    assert events == ["fsync False", "rename", "fsync True"]


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (9, 10, 100, 20000000):
        checkpoint.save(tmp_path, step, state(step), keep=2)
    assert [path.name for path in checkpoint.saved(tmp_path)] == [
        "checkpoint-20000000.pt",
        "checkpoint-00000100.pt",
    ]


def test_an_unfinished_checkpoint_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ("checkpoint-00000007.pt" + checkpoint.UNFINISHED)).write_bytes(b"half")
    assert checkpoint.newest(tmp_path, fail) is None
    checkpoint.remove_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 10, 1000])
def test_a_damaged_checkpoint_is_passed_over_aloud(tmp_path: Path, size: int) -> None:
    checkpoint.save(tmp_path, 1, state(1), keep=2)
    damaged = checkpoint.save(tmp_path, 2, state(2), keep=2)
    damaged.write_bytes(damaged.read_bytes()[:size])
    said: list[str] = []
    newest = checkpoint.newest(tmp_path, said.append)
    assert newest is not None
    assert newest["step"] == 1
    assert said == [f"{damaged} is damaged and passed over"]


def test_damaged_checkpoints_alone_are_a_problem_and_no_fresh_start(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 2, state(2), keep=2).write_bytes(b"")
    with pytest.raises(Problem, match=r"no checkpoint in .* can be read"):
        checkpoint.newest(tmp_path, lambda _: None)


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    class Malice:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.mkdir, (str(tmp_path / "owned"),)

    path = tmp_path / "checkpoint-00000001.pt"
    torch.save({"step": Malice()}, path)
    with pytest.raises(pickle.UnpicklingError):
        checkpoint.load(path)
    assert not (tmp_path / "owned").exists()


def write_log(folder: Path, steps: range) -> Path:
    with log.Log(folder, 0, tensorboard=False) as out:
        for step in steps:
            out.write("train", step, loss=1 / (step + 1))
    return folder / log.NAME


def test_a_truncated_log_ends_at_the_step(tmp_path: Path) -> None:
    path = write_log(tmp_path, range(6))
    log.truncate(path, 3)
    assert [(record["step"], record["loss"]) for record in log.read(path)] == [
        (step, 1 / (step + 1)) for step in range(4)
    ]


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = write_log(tmp_path, range(3))
    with path.open("a") as file:
        file.write('{"kind": "train", "st')
    assert [record["step"] for record in log.read(path)] == [0, 1, 2]
    log.truncate(path, 2)
    assert path.read_text().count("\n") == 3
    write_log(tmp_path, range(3, 4))
    assert [record["step"] for record in log.read(path)] == [0, 1, 2, 3]


def test_records_are_in_the_file_at_once(tmp_path: Path) -> None:
    with log.Log(tmp_path, 0, tensorboard=False) as out:
        out.write("train", 1, loss=0.1)
        assert len(log.read(tmp_path / log.NAME)) == 1


def test_a_log_that_is_none_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / log.NAME).write_text("hello\n")
    with pytest.raises(Problem, match=r"log\.jsonl is no training log"):
        log.read(tmp_path / log.NAME)
