"""docs/guides/several-machines.md: its commands, each on two machines that are network namespaces of this one."""

import re
from collections.abc import Iterator
from pathlib import Path

import checkpoint
import log
import pytest
import train
from machines import Machine, machines, wait_until
from pages import blocks_in_guide

pytestmark = [pytest.mark.usefixtures("throttled_links"), pytest.mark.timeout(200)]
PAGE = "several-machines"
TWO, KEPT, ELASTIC = blocks_in_guide(PAGE, "sh")
SAID = blocks_in_guide(PAGE, "text")
SHAPE = "--layers 1 --d-model 32 --heads 4 --context 16 --batch 8 --val-sequences 8 --sample-length 0"


def shortened(command: str, folder: Path, flags: str) -> str:
    """The page's command on a small model, with its run in another folder."""
    short, count = re.subn(r"--run runs/\w+", f"--run {folder} {SHAPE} {flags}", command)
    assert count == 1
    return short


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in log.read(folder / log.NAME) if "loss" in record]


def alone(folder: Path, flags: str) -> list[float]:
    """The losses of a run on one process."""
    assert train.main([*SHAPE.split(), *flags.split(), "--run", str(folder)]) == 0
    return losses(folder)


def outputs(pair: list[Machine]) -> str:
    return "\n".join(f"{machine.name}:\n{machine.output}" for machine in pair)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Machine]]:
    with machines(2, tmp_path) as found:
        yield found


@pytest.mark.long
def test_two_machines_have_the_losses_of_one_process(pair: list[Machine], tmp_path: Path) -> None:
    flags = "--steps 4 --val-every 2 --dtype float64 --clip 0"
    for machine in pair:
        machine.start(shortened(TWO, tmp_path / "two", flags))
    assert [machine.wait(60) for machine in pair] == [0, 0], outputs(pair)
    first, second = pair
    assert first.output.count("validation loss") == 2
    assert re.search(re.sub(r"\d+", r"\\d+", SAID[0]).strip(), first.output)
    assert "loss" not in second.output
    assert losses(tmp_path / "two") == pytest.approx(alone(tmp_path / "one", flags), rel=1e-9)


@pytest.mark.long
def test_a_run_goes_on_when_a_machine_that_crashed_comes_back(pair: list[Machine], tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    # A small rate: what is rounded otherwise grows slowly over the steps.
    flags = "--steps 80 --val-every 40 --checkpoint-every 5 --dtype float64 --rank-fraction 0.25 --lr 0.002"
    command = shortened(KEPT, folder, flags)
    first, second = pair
    for machine in pair:
        machine.start(command)
    wait_until(lambda: len(checkpoint.saved(folder)) > 0, 60, lambda: outputs(pair))
    second.crash()
    *causes, failed, resuming = SAID[2].replace("runs/kept", str(folder)).splitlines()
    wait_until(lambda: failed in first.output, 10, lambda: outputs(pair))
    assert any(cause in first.output for cause in causes)
    second.start(command)
    assert [machine.wait(60) for machine in pair] == [0, 0], outputs(pair)
    assert re.search(rf"{re.escape(resuming)} \d*[05]$", first.output, re.MULTILINE)
    assert losses(folder) == pytest.approx(alone(tmp_path / "one", flags), rel=1e-8)


@pytest.mark.long
def test_a_run_grows_and_shrinks_with_its_machines(pair: list[Machine], tmp_path: Path) -> None:
    folder, flags = tmp_path / "elastic", "--steps 1000000 --val-every 1000 --checkpoint-every 100"
    command = shortened(ELASTIC, folder, flags)
    first, second = pair
    first.start(command)
    wait_until(lambda: len(checkpoint.saved(folder)) > 0, 90, lambda: outputs(pair))
    second.start(command)
    wait_until(lambda: "resuming" in first.output, 60, lambda: outputs(pair))
    assert "interrupted after step" in first.output
    assert "--fs 1" in first.output
    second.crash()
    wait_until(lambda: first.output.count("resuming") == 2, 90, lambda: outputs(pair))


@pytest.mark.long
def test_a_name_at_a_loopback_address_keeps_machines_apart_until_an_interface_is_named(
    pair: list[Machine], tmp_path: Path
) -> None:
    first, second = pair
    first.know({"node1": "127.0.1.1", "node2": "10.0.0.2"})
    second.know({"node1": "10.0.0.1", "node2": "127.0.1.1"})
    once = KEPT.replace("--max-restarts 3", "")
    unnamed, wrong = once.replace("GLOO_SOCKET_IFNAME=eth0", ""), once.replace("eth0", "eth9")
    for command, refusals in ((unnamed, SAID[1].splitlines()), (wrong, ["Unable to find address for: eth9"])):
        for machine in pair:
            machine.start(shortened(command, tmp_path / "two", "--steps 2"))
        wait_until(lambda: all(map(outputs(pair).count, refusals)), 60, lambda: outputs(pair))  # noqa: B023
        for machine in pair:
            machine.crash()
    for machine in pair:
        machine.start(shortened(once, tmp_path / "two", "--steps 2"))
    assert [machine.wait(60) for machine in pair] == [0, 0], outputs(pair)
