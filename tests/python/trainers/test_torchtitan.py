"""docs/guides/torchtitan.md: its file in torchtitan 0.3.0 where that is installed, and else in a stand-in."""

import importlib
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import titan_stand_in
import torch
from machines import ROOT, environment
from pages import blocks_in_guide
from ranks import run_ranks
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torchdion

[FILE] = blocks_in_guide("torchtitan", "python")
NAME = "dion_llama"
ON_CPU = Path(titan_stand_in.__file__).with_name("titan_on_cpu.py")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The page's file, imported."""
    assert FILE.startswith(f"# {NAME}.py\n")
    (tmp_path / f"{NAME}.py").write_text(FILE)
    if find_spec("torchtitan") is None:
        titan_stand_in.install(monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    return importlib.import_module(NAME)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(16, 8), checkpoint_wrapper(nn.Linear(8, 12)), nn.LayerNorm(12), nn.Linear(12, 16))


def train(part: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    tokens = torch.arange(16).reshape(2, 8)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(part(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()


def test_the_container_steps_as_dion_does_on_routed_parameters(page: ModuleType) -> None:
    contained, alone = model(), model()
    config = page.DionContainer.Config(lr=0.02, weight_decay=0.1, rank_fraction=0.5)
    train(contained, page.DionContainer(config, model_parts=[contained]))
    train(alone, torchdion.Dion(torchdion.param_groups(alone, weight_decay=0.1), lr=0.02, rank_fraction=0.5))
    assert all(map(torch.equal, contained.parameters(), alone.parameters()))
    assert not torch.equal(contained[3].weight, model()[3].weight)


def test_each_part_has_an_optimizer_whose_parameters_have_names_without_wrappers(page: ModuleType) -> None:
    container = page.DionContainer(page.DionContainer.Config(), model_parts=[model(), model()])
    assert [type(optimizer) for optimizer in container.optimizers] == 2 * [torchdion.Dion]
    for optimizer in container.optimizers:
        names = {name for group in optimizer.param_groups for name in group["param_names"]}
        assert names == {"0.weight", "1.weight", "1.bias", "2.weight", "2.bias", "3.weight", "3.bias"}


def test_the_configuration_has_the_container(page: ModuleType) -> None:
    assert page.dion_debugmodel().optimizer == page.DionContainer.Config(lr=0.01, rank_fraction=0.25)


def step_with_a_replicate_mesh(rank: int, world_size: int) -> str:
    mesh = init_device_mesh("cpu", (world_size, 1), mesh_dim_names=("dp_replicate", "fsdp"))
    layer = nn.Linear(4, 4)
    fully_shard(layer, mesh=mesh)
    layer(torch.ones(2, 4)).sum().backward()
    with pytest.raises(ValueError) as refusal:
        torchdion.Dion(layer.parameters(), replicate_mesh=mesh["dp_replicate"]).step()
    return str(refusal.value)


def test_a_mesh_of_replicas_whose_gradients_fsdp2_averages_is_refused() -> None:
    [said] = blocks_in_guide("torchtitan", "text")
    assert all(said.strip() in sentence for sentence in run_ranks(step_with_a_replicate_mesh, 2))


@pytest.fixture
def assets(tmp_path: Path) -> Path:
    """A folder with what the debug model reads: a tokenizer of bytes, and texts."""
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("torchtitan")
    (tmp_path / f"{NAME}.py").write_text(FILE)
    for folder in ("tokenizer", "c4_test"):
        (tmp_path / "tests" / "assets" / folder).mkdir(parents=True)
    bytes_alone = {character: number for number, character in enumerate(tokenizers.pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=bytes_alone, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    tokenizer.save(str(tmp_path / "tests" / "assets" / "tokenizer" / "tokenizer.json"))
    special = {"bos_token": "<bos>", "eos_token": "<eos>"}
    (tmp_path / "tests" / "assets" / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(special))
    texts = [path.read_text() for path in sorted((ROOT / "examples" / "gpt").glob("*.py"))]
    lines = [json.dumps({"text": text}) for text in texts]
    (tmp_path / "tests" / "assets" / "c4_test" / "data.json").write_text("\n".join(lines))
    return tmp_path


def run(folder: Path, output: str, steps: int, *flags: str) -> dict[int, str]:
    """The losses that torchtitan prints, by their steps."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(ON_CPU)]
    launch += ["--module", NAME, "--config", "dion_debugmodel", "--dump_folder", output, "--training.steps", str(steps)]
    launch += ["--lr_scheduler.total_steps", "6", "--training.seq_len", "64", "--training.disable_cuda_graphs"]
    launch += ["--checkpoint.enable", "--checkpoint.interval", "2", "--debug.seed", "0", *flags]
    own = environment()
    own["PYTHONPATH"] += f"{os.pathsep}{folder}"
    done = subprocess.run(launch, cwd=folder, env=own, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    return {int(step): loss for step, loss in re.findall(r"step: +(\d+) +loss: +([\d.]+)", plain)}


def test_torchtitan_trains_and_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(assets: Path) -> None:
    small = ("--training.local_batch_size", "2")
    whole = run(assets, "whole", 6, *small)
    assert float(whole[6]) < float(whole[1])
    stopped, resumed = run(assets, "parts", 4, *small), run(assets, "parts", 6, *small)
    assert (list(stopped), list(resumed)) == ([1, 2, 3, 4], [5, 6])
    assert stopped | resumed == whole


@pytest.mark.long
def test_a_checkpoint_of_fsdp2_goes_on_under_tensor_parallelism(assets: Path) -> None:
    run(assets, "moved", 4, "--training.local_batch_size", "2")
    flags = ("--parallelism.tensor_parallel_degree", "2", "--checkpoint.exclude_from_loading", "dataloader")
    assert list(run(assets, "moved", 6, "--training.local_batch_size", "4", *flags)) == [5, 6]
