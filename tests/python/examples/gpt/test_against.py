"""train.py --against: two runs that differ in their optimizer alone, and which was ahead."""

import re
import signal
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import against
import errors
import log
import options
import pytest
import torch
import train
import trainer

SHAPE = ["--layers", "1", "--d-model", "32", "--heads", "2", "--context", "32"]
RUN = ["--batch", "4", "--steps", "8", "--val-every", "2", "--val-sequences", "8", "--checkpoint-every", "3"]
SMALL = [*SHAPE, *RUN, "--sample-length", "30"]
AGAINST = [*SMALL, "--against", "torch_adamw"]


def losses(folder: Path, kind: str) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in log.read(folder / log.NAME) if record["kind"] == kind}


def recipe(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = log.read(folder / log.NAME)[0]["recipe"]
    return found


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tiny-dion and of tiny-torch_adamw, both finished."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    assert train.main([*AGAINST, "--run", str(folder / "tiny-dion")]) == 0
    torch.set_num_threads(threads)
    return folder


def test_the_other_run_differs_in_the_optimizer_and_its_flags_alone(compared: Path) -> None:
    ours, other = recipe(compared / "tiny-dion"), recipe(compared / "tiny-torch_adamw")
    shared = set(options.Recipe.__dataclass_fields__) - {"hyperparameters", "optimizer"}
    assert {name: ours[name] for name in shared} == {name: other[name] for name in shared}
    assert (ours["optimizer"], ours["lr"]) == ("dion", 0.02)
    assert {name: other[name] for name in other.keys() - shared} == {
        "optimizer": "torch_adamw", "lr": 0.003, "betas": [0.9, 0.95], "weight_decay": 0.01, "epsilon": 1e-8
    }  # fmt: skip


def test_the_other_run_is_that_of_its_own_command(compared: Path, tmp_path: Path) -> None:
    assert train.main([*SMALL, "--optimizer", "torch_adamw", "--run", str(tmp_path)]) == 0
    for kind in ("train", "validation"):
        assert losses(tmp_path, kind) == losses(compared / "tiny-torch_adamw", kind)


def test_it_ends_with_a_sample_a_comparison_and_a_picture(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where both runs are there already, of which no step is made again."""
    folders = [compared / "tiny-dion", compared / "tiny-torch_adamw"]
    before = [(folder / log.NAME).read_bytes() for folder in folders]
    (folders[0] / "loss.svg").unlink()
    assert train.main(["--run", str(folders[0]), "--resume", "--against", "torch_adamw"]) == 0
    assert [(folder / log.NAME).read_bytes() for folder in folders] == before
    *others, sentence, picture = capsys.readouterr().out.splitlines()
    for folder in folders:
        assert f"{folder} has all of its 8 steps already" in others
    assert others[others.index("class Reader:") + 1].startswith("    def __init__(self, ")
    mine, other = (losses(folder, "validation") for folder in folders)
    assert list(mine) == [2, 4, 6, 8]
    assert mine[8] < other[8]
    reached = next(step for step, loss in mine.items() if loss <= other[8])
    assert sentence == (
        f"Dion reached the final loss of torch.optim.AdamW ({other[8]:.3f} nats per byte after 8 steps) by step "
        f"{reached}, and ended at {mine[8]:.3f}."
    )
    assert picture == f"both runs as a picture: {folders[0] / 'loss.svg'}"
    drawn = (folders[0] / "loss.svg").read_text()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert all(f"{folder.name}, validation" in drawn for folder in folders)


def test_it_goes_the_other_way_round_too(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = compared / "tiny-torch_adamw"
    assert train.main(["--run", str(folder), "--resume", "--against", "dion", "--sample-length", "0"]) == 0
    sentence = capsys.readouterr().out.splitlines()[-2]
    loss = r"\d\.\d{3}"
    words = (
        f"torch.optim.AdamW ended at {loss} nats per byte after 8 steps, above the {loss} of Dion, which reached {loss}"
    )
    assert re.fullmatch(rf"{words} by step [2468]\.", sentence)


def test_without_matplotlib_it_says_what_to_install(
    compared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder = compared / "tiny-dion"
    (folder / "loss.svg").unlink(missing_ok=True)
    assert train.main(["--run", str(folder), "--resume", "--against", "torch_adamw", "--sample-length", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "for a picture of both: pip install matplotlib, then python examples/gpt/plot.py "
        f"{folder} {compared / 'tiny-torch_adamw'}"
    )
    assert not (folder / "loss.svg").exists()


@pytest.mark.parametrize("optimizer", ["dion", "torch_adamw"])
def test_a_signal_in_either_run_leaves_what_goes_on_to_the_same_losses(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    step = trainer.Trainer.train_step

    def interrupted_step(self: trainer.Trainer) -> trainer.StepReport:
        if self.recipe.optimizer == optimizer and self.step == 4:
            signal.raise_signal(signal.SIGINT)
        return step(self)

    monkeypatch.setattr(trainer.Trainer, "train_step", interrupted_step)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    flags = [*AGAINST, "--run", str(tmp_path / "tiny-dion")]
    assert train.main(flags) == 130
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].startswith("interrupted after step 5; to go on: python train.py ")
    assert printed[-1].endswith(" --against torch_adamw --run " + flags[-1] + " --resume")
    assert (tmp_path / "tiny-torch_adamw").exists() == (optimizer == "torch_adamw")
    monkeypatch.setattr(trainer.Trainer, "train_step", step)
    assert train.main([*flags, "--resume"]) == 0
    for name in ("tiny-dion", "tiny-torch_adamw"):
        for kind in ("train", "validation"):
            assert losses(tmp_path / name, kind) == losses(compared / name, kind)


def refused(flags: list[str]) -> str:
    with pytest.raises(errors.Problem) as problem:
        train.main(flags)
    assert problem.value.code == 2
    return str(problem.value)


def test_a_run_of_another_recipe_is_left_alone_unless_it_may_be_replaced(tmp_path: Path) -> None:
    flags, other = [*AGAINST, "--run", str(tmp_path / "mine"), "--sample-length", "0"], tmp_path / "mine-torch_adamw"
    assert train.main([*SMALL, "--optimizer", "torch_adamw", "--seed", "1", "--run", str(other)]) == 0
    before = (other / log.NAME).read_bytes()
    assert refused(flags) == (
        f"{other} holds a run to compare with, but its --seed is 1 instead of 0; give --overwrite or another --run"
    )
    assert (other / log.NAME).read_bytes() == before
    assert not (tmp_path / "mine").exists()
    assert train.main([*flags, "--overwrite"]) == 0
    assert recipe(other)["seed"] == 0
    replaced = (other / log.NAME).read_bytes()
    assert train.main([*flags, "--overwrite", "--lr", "0.01"]) == 0  # which is not the other's
    assert (other / log.NAME).read_bytes() == replaced


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--against", "dion"], "--against dion is the optimizer of the run itself"),
        (["--against", "sgd"], "argument --against: must be one of dion, double_dion, "),
        (["--until-loss", "3"], "--against compares runs of as many steps, which --until-loss may end before"),
        (["--dp", "2"], "--against compares two runs on one process each; leave it out with --dp, --fs and --tp"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], sentence: str
) -> None:
    if "--dp" in flags:
        monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun does
    assert refused([*AGAINST, "--run", str(tmp_path / "run"), *flags]).startswith(sentence)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("folder", "optimizer", "beside"),
    [
        ("runs/tiny-dion", "torch_adamw", "runs/tiny-torch_adamw"),
        ("runs/mine", "torch_adamw", "runs/mine-torch_adamw"),
        ("runs/tiny-dion", "a/mine.py:sgd", "runs/tiny-mine-sgd"),
        ("runs/mine", "a/mine.py:sgd", "runs/mine-mine-sgd"),
    ],
)
def test_the_other_folder_is_beside_the_runs(folder: str, optimizer: str, beside: str) -> None:
    recipe = options.recipe({}, torch.device("cpu"))
    assert against.folder_beside(Path(folder), recipe, optimizer) == Path(beside)
