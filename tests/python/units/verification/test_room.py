"""verify starts no more ranks than there are cores and memory for."""

import os
from pathlib import Path

import pytest

from torchdion.verification import room
from torchdion.verification.command import main
from torchdion.verification.room import free_bytes


def test_more_ranks_than_the_machine_has_room_for_are_refused_before_any_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 3000000 kB\n")
    assert free_bytes(tmp_path) == 3000000 * 1024
    monkeypatch.setattr(room, "free_bytes", lambda: 1500000000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert main(["--mesh", "dp=300"]) == 2
    assert capsys.readouterr().err == (
        "python -m torchdion verify: argument --mesh: must have at most 7 ranks, for which there are cores and "
        "memory, got 300\n"
    )
    monkeypatch.setattr(room, "free_bytes", lambda: 10**12)
    assert main(["--mesh", "dp=33"]) == 2
    assert "must have at most 32 ranks" in capsys.readouterr().err
    assert (room.ranks_that_fit("fork"), room.ranks_that_fit("spawn")) == (32, 32)
    monkeypatch.setattr(room, "free_bytes", lambda: 2 * 10**9)
    assert (room.ranks_that_fit("fork"), room.ranks_that_fit("spawn")) == (9, 3)


@pytest.mark.parametrize(
    ("cgroup", "base", "limit", "used", "cached"),
    [
        ("0::/jobs/a", "", "memory.max", "memory.current", "active_file 2\ninactive_file 30\nfile 40\n"),
        ("7:pids:/\n4:cpu,memory:/jobs/a", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
         "active_file 1\ninactive_file 1\ntotal_active_file 2\ntotal_inactive_file 30\n"),
    ],
    ids=["version 2", "version 1"],
)  # fmt: skip
def test_a_control_groups_limit_counts_and_cached_files_do_not(
    tmp_path: Path, cgroup: str, base: str, limit: str, used: str, cached: str
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 3000000 kB\n")
    assert free_bytes(tmp_path) == 3000000 * 1024
    (tmp_path / "proc/self/cgroup").write_text(cgroup + "\n")
    own = tmp_path / "sys/fs/cgroup" / base / "jobs/a"
    own.mkdir(parents=True)
    for folder, bytes_allowed in ((own, "2000000"), (own.parent, "1500000"), (own.parent.parent, "max")):
        (folder / limit).write_text(bytes_allowed + "\n")
        (folder / used).write_text("500000\n")
        (folder / "memory.stat").write_text(cached)
    assert free_bytes(tmp_path) == 1000032
    (own / used).write_text("1999990\n")
    assert free_bytes(tmp_path) == 42
    (own / used).write_text("2000100\n")
    assert free_bytes(tmp_path) == 0
