"""examples/gpt: the scripts as a user runs them, on one small run, and the sentences for what goes wrong."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import checkpoint
import errors
import log
import make_shards
import numpy as np
import plot
import pytest
import sample
import shards
import torch
import train

EXAMPLE = Path(__file__).parents[4] / "examples" / "gpt"
SHAPE = ["--layers", "1", "--d-model", "32", "--heads", "2", "--context", "32"]
RUN = ["--batch", "4", "--steps", "6", "--val-sequences", "8", "--optimizer", "torch_adamw"]
SMALL = [*SHAPE, *RUN, "--sample-length", "20"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """So small a model is slower on several threads, by far where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def token_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 100)
    make_shards.main([str(folder / "shards"), str(text), "--shard-tokens", "1200", "--validation", "0"])
    assert len(list((folder / "shards").glob("train_*.bin"))) == 4
    return folder / "shards"


@pytest.fixture(scope="module")
def finished(token_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run on byte shards."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    data = ["--data", str(token_shards / "train_*.bin"), "--vocab", "256"]
    assert train.main([*SMALL, *data, "--run", str(folder), "--tensorboard"]) == 0
    return folder


def test_a_run_leaves_a_log_a_checkpoint_and_a_board(finished: Path) -> None:
    records = log.read(finished / log.NAME)
    assert [(record["kind"], record["step"]) for record in records] == [
        ("run", 0), *(("train", step) for step in range(1, 7)), ("validation", 6)
    ]  # fmt: skip
    assert records[0]["recipe"]["d_model"] == 32
    seconds = [record["seconds"] for record in records[1:7]]
    assert seconds == sorted(seconds)
    assert all(record["optimizer_ms"] > 0 and record["tokens_per_second"] > 0 for record in records[1:7])
    assert [path.name for path in checkpoint.saved(finished)] == ["checkpoint-00000006.pt"]
    assert len(list((finished / "tensorboard").glob("events.*"))) == 1


def test_without_a_terminal_lines_and_a_sample_are_printed(tmp_path: Path, outcome) -> None:
    code, out, _ = outcome(train.main, *SMALL, "--run", str(tmp_path / "run"), "--prompt", "def ")
    lines = out.splitlines()
    assert code == 0
    assert re.match(r"step 1/6: loss 5\.[56]\d\d\d, [\d,]+ tokens/s, optimizer [\d.]+ ms$", lines[0])
    assert any(line.startswith("step 6/6: validation loss ") for line in lines)
    assert "\ndef " in out


def test_without_a_prompt_a_sample_of_the_standard_library_is_a_class(tmp_path: Path, outcome) -> None:
    folder = str(tmp_path / "run")
    beginning = "class Reader:\n    def __init__(self, "
    assert f"\n\n{beginning}" in outcome(train.main, *SMALL, "--run", folder)[1]
    assert outcome(sample.main, folder, "--length", "3")[1].startswith(beginning)
    assert not outcome(sample.main, folder, "--length", "3", "--prompt", "")[1].startswith("class")
    assert sample.default_prompt("shards/*.bin") == sample.default_prompt(None) == ""


def test_a_sample_is_the_prompt_and_what_follows_and_repeats_with_its_seed(finished: Path, outcome) -> None:
    flags = [str(finished), "--prompt", "the quick", "--length", "40"]
    first, again = (outcome(sample.main, *flags)[1] for _ in range(2))
    assert first.startswith("the quick")
    assert first == again
    assert first != outcome(sample.main, *flags, "--seed", "1")[1]


def test_a_plot_of_two_runs_is_a_png(finished: Path, tmp_path: Path) -> None:
    picture = tmp_path / "loss.png"
    assert plot.main([str(finished), str(finished), "-o", str(picture)]) == 0
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))
    assert (width, height) == (1800, 750)
    assert len(content) > 20_000


def test_a_plot_may_be_an_svg_of_the_same_bytes_each_time(finished: Path, tmp_path: Path) -> None:
    pictures = [tmp_path / "first.svg", tmp_path / "second.svg"]
    for picture in pictures:
        assert plot.main([str(finished), "-o", str(picture)]) == 0
    content = pictures[0].read_bytes()
    assert b"<svg" in content
    assert content == pictures[1].read_bytes()


def test_a_plot_without_matplotlib_says_what_to_install(
    finished: Path, monkeypatch: pytest.MonkeyPatch, outcome
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, error = outcome(plot.main, str(finished))
    assert (code, only_sentence(error)) == (2, "a plot needs the package matplotlib; `pip install matplotlib`")


def test_a_plots_line_is_a_running_mean() -> None:
    values = np.arange(200.0)
    means = plot.smoothed(values)  # over 2 % of 200, 4 values
    assert means[:3].tolist() == [0.0, 0.5, 1.0]
    assert means[100] == pytest.approx(np.mean([97, 98, 99, 100]))


def test_a_plot_names_the_unit_of_its_runs(finished: Path) -> None:
    assert plot.loss_unit([plot.Curves(finished)]) == "nats per byte"


def test_a_finished_run_resumes_to_nothing(finished: Path, outcome) -> None:
    before = (finished / log.NAME).read_bytes()
    code, out, _ = outcome(train.main, "--run", str(finished), "--resume")
    assert code == 0
    assert out.splitlines()[-1] == f"{finished} has all of its 6 steps already"
    assert (finished / log.NAME).read_bytes() == before


def test_a_run_can_be_prolonged(token_shards: Path, tmp_path: Path) -> None:
    data = ["--data", str(token_shards / "train_*.bin"), "--vocab", "256", "--run", str(tmp_path)]
    assert train.main([*SMALL, *data]) == 0
    assert train.main([*data, "--resume", "--steps", "8", "--sample-length", "0"]) == 0
    steps = [record["step"] for record in log.read(tmp_path / log.NAME) if record["kind"] == "train"]
    assert steps == list(range(1, 9))


def test_a_run_ends_at_the_loss_asked_for(token_shards: Path, tmp_path: Path) -> None:
    data = ["--data", str(token_shards / "train_*.bin"), "--vocab", "256", "--run", str(tmp_path)]
    flags = [*SMALL, *data, "--steps", "30", "--val-every", "2"]
    assert train.main([*flags, "--until-loss", "4.5"]) == 0
    *before, last = [row["loss"] for row in log.read(tmp_path / log.NAME) if row["kind"] == "validation"]
    assert min(before) > 4.5 >= last
    [path] = checkpoint.saved(tmp_path)
    assert checkpoint.load(path)["step"] == 2 * (len(before) + 1) < 30


def test_a_run_that_diverges_says_so_in_its_log(token_shards: Path, tmp_path: Path) -> None:
    data = ["--data", str(token_shards / "train_*.bin"), "--vocab", "256", "--run", str(tmp_path)]
    with pytest.raises(errors.Diverged, match="the loss is nan after"):
        train.main([*SMALL, *data, "--lr", "1e30", "--clip", "0"])
    assert log.read(tmp_path / log.NAME)[-1]["kind"] == "diverged"


def test_overwrite_replaces_a_run(token_shards: Path, tmp_path: Path) -> None:
    flags = [*SMALL, "--data", str(token_shards / "train_*.bin"), "--vocab", "256", "--run", str(tmp_path)]
    (tmp_path / "notes.txt").write_text("mine")
    assert train.main([*flags, "--checkpoint-every", "2", "--keep", "3"]) == 0
    assert train.main([*flags, "--overwrite", "--steps", "3"]) == 0
    assert [path.name for path in checkpoint.saved(tmp_path)] == ["checkpoint-00000003.pt"]
    assert log.read(tmp_path / log.NAME)[-1]["step"] == 3
    assert (tmp_path / "notes.txt").exists()


def only_sentence(error: str) -> str:
    """The error output, which is one line without a traceback."""
    assert error.count("\n") == 1, error
    assert "Traceback" not in error
    return error.removeprefix("script.py: ").rstrip("\n")


@pytest.mark.parametrize(
    "flags, sentence",
    [
        ("--lr -1", "argument --lr: must be a number above 0, got '-1'"),
        ("--lr nan", "argument --lr: must be a number above 0, got 'nan'"),
        ("--context 0", "argument --context: must be a whole number of at least 1, got '0'"),
        ("--steps 2.5", "argument --steps: must be a whole number of at least 1, got '2.5'"),
        ("--warmup 1.5", "argument --warmup: must be a number from 0 to 1, got '1.5'"),
        ("--preset huge", "argument --preset: invalid choice: 'huge' (choose from"),
        ("--optimizer sgd", "argument --optimizer: must be one of dion, double_dion, "),
        ("--optimizer none.py:sgd", "--optimizer none.py:sgd: there is no file none.py, here or beside train.py"),
        ("--optimizer train.py:sgd", "--optimizer train.py:sgd: "),
        ("--optimizer presets.py:vocabulary", "--optimizer presets.py:vocabulary needs the keyword lr"),
        ("--optimizer presets.py:hyperparameters", "--optimizer presets.py:hyperparameters must be a function"),
        ("--until-loss 0", "argument --until-loss: must be a number above 0, got '0'"),
        ("--lrr 1", "unrecognized arguments: --lrr 1"),
        ("--heads 3", "--heads 3 does not divide --d-model 32"),
        ("--heads 32", "rotary positions need an even width per head, but --d-model / --heads is 1"),
        ("--micro-batch 3", "--micro-batch 3 does not divide --batch 4"),
        ("--warmup 0.8 --decay 0.3", "--warmup 0.8 and --decay 0.3 together exceed the whole run"),
        ("--seed 99999999999999999999", "argument --seed: must be at most 2147483647"),
        ("--rank-fraction 2", "argument --rank-fraction: must be a number above 0 and at most 1, got '2'"),
        ("--rank-fraction 0.5", "--rank-fraction has no effect with --optimizer torch_adamw"),
        ("--optimizer muon --rank-fraction 0.5", "--rank-fraction has no effect with --optimizer muon"),
        ("--optimizer muon --adamw-lr 0.1", "--adamw-lr has no effect with --optimizer muon"),
        ("--optimizer torch_muon --newton-schulz gram", "--newton-schulz has no effect with --optimizer torch_muon"),
        ("--optimizer muon --newton-schulz 5", "argument --newton-schulz: invalid choice: '5' (choose from"),
        ("--optimizer muon --ns-steps 0", "argument --ns-steps: must be a whole number of at least 1, got '0'"),
        ("--optimizer muon --adjust-lr match_rms_adamw",
         "--adjust-lr of --optimizer muon is one of spectral_norm, rms_norm, original, none, got match_rms_adamw"),
        ("--optimizer torch_muon --adjust-lr none",
         "--adjust-lr of --optimizer torch_muon is one of original, match_rms_adamw, got none"),
        ("--vocab 100", "--vocab must be at least 256 for bytes, got 100"),
        ("--val-data x.bin", "--val-data needs --data"),
        ("--device tpu", "--device must be cpu, cuda or cuda:N, got 'tpu'"),
        ("--device cuda:99", "--device cuda:99: PyTorch finds"),
        ("--resume --overwrite", "--resume continues the run that --overwrite would replace"),
        ("--data nowhere/*.bin", "--data: no file matches 'nowhere/*.bin'"),
    ],
)  # fmt: skip
def test_a_wrong_flag_is_one_sentence_and_exit_code_2(tmp_path: Path, outcome, flags: str, sentence: str) -> None:
    code, _, error = outcome(train.main, *SMALL, "--run", str(tmp_path / "run"), *flags.split())
    assert code == 2
    assert only_sentence(error).startswith(sentence)
    assert not (tmp_path / "run").exists()


def test_a_truncated_shard_is_one_sentence(token_shards: Path, tmp_path: Path, outcome) -> None:
    shard = tmp_path / "cut.bin"
    shard.write_bytes((token_shards / "train_000000.bin").read_bytes()[:-10])
    code, _, error = outcome(train.main, *SMALL, "--data", str(shard), "--run", str(tmp_path / "run"))
    assert code == 2
    assert only_sentence(error).startswith(f"{shard} is truncated: its header promises 1200 tokens")


def test_a_folder_with_a_run_is_not_written_to_unasked(finished: Path, outcome) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in finished.iterdir()}
    code, _, error = outcome(train.main, *SMALL, "--run", str(finished))
    assert code == 2
    expected = f"{finished} holds a run already; give --resume, --overwrite or another --run"
    assert only_sentence(error) == expected
    assert {path.name: path.stat().st_mtime_ns for path in finished.iterdir()} == before


@pytest.mark.parametrize(
    "flags, sentence",
    [
        ("--d-model 64", "--d-model is 64 but the checkpoint's is 32; a resumed run keeps it"),
        ("--lr 0.5", "--lr is 0.5 but the checkpoint's is 0.003; a resumed run keeps it"),
        ("--optimizer muon", "--optimizer is muon but the checkpoint's is torch_adamw; a resumed run keeps it"),
        ("--seed 1", "--seed is 1 but the checkpoint's is 0; a resumed run keeps it"),
    ],
)
def test_a_resumed_run_keeps_its_recipe(finished: Path, outcome, flags: str, sentence: str) -> None:
    code, _, error = outcome(train.main, "--run", str(finished), "--resume", *flags.split())
    assert code == 2
    assert only_sentence(error) == sentence


def test_a_resumed_run_keeps_its_data(token_shards: Path, tmp_path: Path, outcome) -> None:
    shard = tmp_path / "one.bin"
    shard.write_bytes((token_shards / "train_000000.bin").read_bytes())
    folder = str(tmp_path / "run")
    assert train.main([*SMALL, "--data", str(shard), "--vocab", "256", "--run", folder]) == 0
    shards.write_shard(shard, np.zeros(1500, dtype=np.uint16))
    code, _, error = outcome(train.main, "--run", folder, "--resume", "--steps", "9")
    assert code == 2
    assert only_sentence(error) == f"the data of --data {shard} have changed since the checkpoint was written"


@pytest.mark.parametrize(
    "main, arguments, sentence",
    [
        (plot.main, ["nowhere"], "nowhere/log.jsonl cannot be read: No such file or directory"),
        (plot.main, ["nowhere", "-o", "loss.pdf"], "--output must end in .png or .svg, got 'loss.pdf'"),
        (sample.main, ["nowhere"], "nowhere holds no checkpoint"),
        (
            sample.main,
            ["x", "--top-p", "0"],
            "argument --top-p: must be a number above 0 and at most 1, got '0'",
        ),
        (
            sample.main,
            ["x", "--temperature", "0"],
            "argument --temperature: must be a number above 0, got '0'",
        ),
        (make_shards.main, ["out", "nowhere.txt"], "nowhere.txt cannot be read: No such file or directory"),
    ],
)
def test_the_other_scripts_say_one_sentence_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome, main, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = outcome(main, *arguments)
    assert code == 2
    assert only_sentence(error) == sentence


@pytest.mark.parametrize(
    "package, main, arguments, sentence",
    [
        ("torchdion", train.main, SHAPE, "torchdion cannot be imported"),
        ("tiktoken", make_shards.main, ["out", "text", "--tokenizer", "gpt2"], "GPT-2's tokens need the package"),
    ],
)
def test_a_missing_package_is_named_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome, package: str, main, arguments, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    code, _, error = outcome(main, *arguments)
    assert code == 2
    assert only_sentence(error).startswith(sentence)


def test_the_script_itself_exits_with_2_and_one_line() -> None:
    command = [sys.executable, str(EXAMPLE / "train.py"), "--lr", "0"]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "train.py: argument --lr: must be a number above 0, got '0'\n"
