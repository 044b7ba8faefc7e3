"""python -m torchdion plan, the models it knows, and the commands beside it."""

import json
import subprocess
import sys

import pytest
import torch
from model import GPT, Shape
from presets import PRESETS
from torch import nn

import torchdion
from torchdion.__main__ import COMMANDS, main
from torchdion.planning.models import MODELS, Transformer, first_stage, matrices
from torchdion.planning.optimizers import OPTIMIZERS, WITH_OWNERS
from torchdion.planning.table import duration, pattern, quantity

ARGUMENTS = ["plan", "--model", "gpt-120m", "--mesh", "dp=2,fs=2,tp=2", "--rank-fraction", "0.25"]


def parameters(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(param.shape) for name, param in model.named_parameters()}


@pytest.mark.parametrize("size", ["120m", "350m", "1.3b", "3b"])
def test_the_papers_models_are_those_of_the_example(size: str) -> None:
    preset = PRESETS[size]
    with torch.device("meta"):
        example = GPT(Shape(50304, preset["layers"], preset["d_model"], preset["heads"]))
    assert parameters(first_stage(MODELS[f"gpt-{size}"])) == parameters(example)


@pytest.mark.parametrize(
    ("name", "count"), [("llama3-8b", 8030261248), ("llama3-70b", 70553706496), ("llama3-405b", 405853388800)]
)
def test_llama_has_as_many_parameters_as_it_says(name: str, count: int) -> None:
    model = first_stage(MODELS[name])
    assert sum(param.numel() for param in model.parameters()) == count
    assert all(param.is_meta for param in model.parameters())


def test_the_first_pipeline_stage_has_the_embedding_and_as_many_blocks_as_any() -> None:
    llama = parameters(first_stage(Transformer(7, 64, 4, 128, 96, 2, True), 3))
    assert llama["layers.2.self_attn.k_proj.weight"] == (32, 64)
    gpt = parameters(first_stage(Transformer(7, 64, 4, 256, 96), 3))
    assert gpt["blocks.2.attention.key.weight"] == (64, 64)
    assert (len(llama), len(gpt)) == (1 + 3 * 9, 1 + 3 * 6)
    assert {"embed_tokens.weight", "embedding.weight"} <= {*llama, *gpt}


def test_shapes_become_matrices() -> None:
    assert list(parameters(matrices("5x3*2,4x7:rowwise")).values()) == [(5, 3), (5, 3), (4, 7)]


def test_names_that_differ_in_one_part_become_one_pattern() -> None:
    names = ["a.0.q.weight", "a.0.k.weight", "a.1.q.weight", "a.1.k.weight", "norm.weight", "a1.b2"]
    assert pattern(names) == "a.*.{q,k}.weight, norm.weight, a1.b2"


def test_numbers_have_three_digits_and_a_unit() -> None:
    assert [quantity(n) for n in (0, 7, 999.6, 12345, 99_960_000, 3.3e14, 5e18)] == [
        "0 ", "7.00 ", "1.00 k", "12.3 k", "100 M", "330 T", "5,000 P"
    ]  # fmt: skip
    assert [duration(s) for s in (0, 2.5e-10, 0.0123, 59.96, 1800, 7200, 1e6, 1e9)] == [
        "0", "0.250 ns", "12.3 ms", "60.0 s", "1,800 s", "2.00 h", "11.6 days", "11,574 days"
    ]  # fmt: skip


def test_the_command_prints_the_plan_of_the_function(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--steps", "1000"]) == 0
    printed = capsys.readouterr().out
    found = torchdion.plan(first_stage(MODELS["gpt-120m"]), {"dp": 2, "fs": 2, "tp": 2}, rank_fraction=0.25)
    assert printed.startswith(f"{found}\n")
    estimate = found.estimates["muon_gathering"]
    expected = f"{duration(1000 * estimate.overlapped_seconds)} to {duration(1000 * estimate.seconds)}"
    assert f"1,000 steps of muon gathering: {expected}\n" in printed


def test_json_holds_everything(capsys: pytest.CaptureFixture[str]) -> None:
    changes = "--mesh dp=2,fs=2,tp=8 --json --network-gbit 10 --fs-cuts other --machine a100"
    assert main([*ARGUMENTS, *changes.split()]) == 0
    [line] = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert {axis: link["bandwidth"] for axis, link in found["links"].items()} == {
        "dp": 1.25e9,
        "fs": 1.25e9,
        "tp": 300e9,
    }
    [up] = [row for row in found["rows"] if "blocks.0.mlp.up.weight" in row["names"]]
    assert (up["piece"], up["rank"], up["cuts"]) == ([384, 384], 192, {"rows": "tp", "columns": "fs"})
    assert list(found["estimates"]) == [name for name in OPTIMIZERS if name not in WITH_OWNERS]
    sent = [row["costs"]["adamw"]["elements"]["dp"] for row in found["rows"]]
    assert found["estimates"]["adamw"]["cost"]["elements"] == {"dp": sum(sent)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("plan", "one of the arguments --model --shapes is required"),
        ("plan --model gpt-5t", "argument --model: invalid choice: 'gpt-5t'"),
        ("plan --shapes 4x", "shapes must be ROWSxCOLUMNS"),
        ("plan --shapes 4x4*0", "shapes must be ROWSxCOLUMNS"),
        ("plan --shapes 4x4 --pp 2", "pp must be 1 with shapes"),
        ("plan --model gpt-120m --pp 13", "pp must be between 1 and the 12 blocks"),
        ("plan --model gpt-120m --mesh dp", "must be sizes such as dp=2,fs=4,tp=8"),
        ("plan --model gpt-120m --mesh dp=2,dp=3", "each name once"),
        ("plan --model gpt-120m --mesh ep=2", "the dimensions of mesh must be named dp, fs, tp"),
        ("plan --model gpt-120m --mesh dp=0", "the sizes of mesh must be integers ≥ 1"),
        ("plan --model gpt-120m --rank-fraction 1.5", "rank_fraction must be in (0, 1], got 1.5"),
        ("plan --model gpt-120m --momentum-dtype int8", "momentum_dtype must be"),
        ("plan --model gpt-120m --network-gbit 0", "argument --network-gbit: must be a finite number above 0, got '0'"),
        ("plan --model gpt-120m --steps inf", "argument --steps: must be a finite number above 0"),
        ("plan --model gpt-120m --mesh dp=99999999", "mesh must have at most 1048576 ranks"),
        ("plan --model gpt-120m --efficiency 2", "efficiency must be in (0, 1]"),
        ("plna", "invalid choice: 'plna'"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_sentence_with_status_2(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(arguments.split())
    except SystemExit as exit:
        status = exit.code
    assert status == 2
    captured = capsys.readouterr()
    [sentence] = captured.err.splitlines()
    assert words in sentence
    assert captured.out == ""


def test_a_command_is_imported_when_it_is_asked_for_and_no_sooner() -> None:
    """Nor does `import torchdion` pay for planning."""
    code = (
        "import sys, torchdion, torchdion.__main__ as command; command.main([]);"
        "assert not [name for name in sys.modules if name.startswith('torchdion.planning')];"
        "assert callable(torchdion.plan) and 'torchdion.planning.plan' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("torchdion  ")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["--help"])
    assert exit.value.code == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in COMMANDS)


def test_a_reader_that_has_seen_enough_ends_a_command_in_silence() -> None:
    command = [sys.executable, "-m", "torchdion", *ARGUMENTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
        done.stdout.close()
        assert done.stderr.read() == b""
        assert done.wait(60) == 1
