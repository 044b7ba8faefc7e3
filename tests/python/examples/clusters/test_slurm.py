"""examples/clusters/slurm.sh with stand-ins for srun and scontrol, on two machines that are network namespaces."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import log
import pytest
import train
from machines import ROOT, Machine, environment, machines, wait_until

SCRIPT = ROOT / "examples" / "clusters" / "slurm.sh"
SHAPE = "--layers 1 --d-model 32 --heads 4 --context 16 --batch 8 --val-sequences 8 --sample-length 0"
RUN = "--steps 60 --val-every 60 --checkpoint-every 60 --dtype float64 --rank-fraction 0.25 --lr 0.002"
FLAGS = [*SHAPE.split(), *RUN.split()]
# Its words from torchrun on, on every machine; SIGTERM is passed on to each.
SRUN = f"""#!{sys.executable}
import json, os, shlex, signal, subprocess, sys
from machines import ask_to_end
command = os.environ | {{"COMMAND": shlex.join(sys.argv[sys.argv.index("torchrun"):])}}
steps = [subprocess.Popen(machine, env=command) for machine in json.loads(os.environ["MACHINES"])]
signal.signal(signal.SIGTERM, lambda *_: [ask_to_end(step) for step in steps])
sys.exit(max(step.wait() for step in steps))
"""
SCONTROL = """#!/bin/sh
if [ "$*" = "show hostnames node[1-2]" ]; then printf 'node1\\nnode2\\n'; else echo "$@" >> "$CALLS"; fi
"""


class Job:
    """Runs of the batch script, in a folder that has the stand-ins."""

    def __init__(self, pair: list[Machine], folder: Path) -> None:
        self.calls, self._output = folder / "calls", folder / "output"
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        base = environment()
        self._environment = base | {
            "PATH": f"{folder}{os.pathsep}{base['PATH']}",
            "PYTHONPATH": os.pathsep.join([base["PYTHONPATH"], *filter(None, sys.path)]),
            "MACHINES": json.dumps([machine.command('eval "exec $COMMAND"') for machine in pair]),
            "CALLS": str(self.calls),
            "SLURM_JOB_ID": "77",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_NODELIST": "node[1-2]",
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                ["bash", str(SCRIPT), *arguments], cwd=ROOT, env=self._environment,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def end(self) -> None:
        """At once, with all processes."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    @property
    def output(self) -> str:
        return self._output.read_text()


@pytest.fixture
def job(throttled_links: None, tmp_path: Path) -> Iterator[Job]:
    with machines(2, tmp_path) as pair:
        found = Job(pair, tmp_path)
        yield found
        found.end()


def losses(folder: Path) -> list[float]:
    path = folder / log.NAME
    return [record["loss"] for record in log.read(path) if "loss" in record] if path.exists() else []


@pytest.mark.long
def test_a_job_whose_time_is_over_goes_on_from_a_checkpoint_when_it_is_run_again(job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job.start("--fs", "2", "--run", str(folder), *FLAGS)
    assert job.process is not None
    wait_until(lambda: len(losses(folder)) > 2, 60, lambda: job.output)
    os.kill(job.process.pid, signal.SIGUSR1)
    assert job.process.wait(30) != 0
    assert job.calls.read_text() == "requeue 77\n"
    [written] = folder.glob("checkpoint-*")
    assert 0 < int(written.name[-8:]) < 60
    job.start("--fs", "2", "--run", str(folder), *FLAGS)
    assert job.process.wait(60) == 0, job.output
    assert f"resuming {folder} after step {int(written.name[-8:])}\n" in job.output
    assert job.calls.read_text() == "requeue 77\n"
    assert train.main([*FLAGS, "--run", str(tmp_path / "one")]) == 0
    assert losses(folder) == pytest.approx(losses(tmp_path / "one"), rel=1e-8)


def test_the_script_is_valid_and_its_options_are_read_by_sbatch() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    lines = SCRIPT.read_text().splitlines()
    options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH --")]
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert len(options) == 8
    assert max(options) < first_command  # sbatch stops at the first command
