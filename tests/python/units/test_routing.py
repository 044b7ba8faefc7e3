"""torchdion.param_groups: every trainable parameter once, as Table 1 of the paper says."""

import math

import pytest
import torch
from torch import Tensor, nn

import torchdion


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2)
        self.experts = nn.Parameter(torch.randn(4, width, 2 * width))
        self.scale = nn.Parameter(torch.ones(()))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width, bias=False))


class Transformer(nn.Module):
    def __init__(self, vocabulary: int = 50, width: int = 16, *, tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(10, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.lm_head.weight = self.tokens.weight


def routes(groups: list[dict]) -> dict[str, dict]:
    """What each parameter is given, by name."""
    return {name: {k: v for k, v in group.items() if k != "params"} for group in groups for name, _ in group["params"]}


def test_every_trainable_parameter_is_routed_exactly_once():
    model = Transformer()
    model.blocks[0].norm.weight.requires_grad_(False)
    groups = torchdion.param_groups(model)
    routed = [param for group in groups for _, param in group["params"]]
    trainable = [param for param in model.parameters() if param.requires_grad]
    assert sorted(map(id, routed)) == sorted(map(id, trainable))
    names = dict(model.named_parameters())
    assert all(names[name] is param for group in groups for name, param in group["params"])


def test_each_kind_has_the_factor_and_the_decay_of_table_1():
    route = routes(torchdion.param_groups(Transformer(width=16), weight_decay=0.03))
    lion = {"algorithm": "lion", "weight_decay": 0.0}
    expected = {
        "tokens.weight": {"kind": "embedding", "lr_multiplier": 1.0, **lion},
        "lm_head.weight": {"kind": "head", "lr_multiplier": 1 / 4, **lion},
        "norm.weight": {"kind": "vector", "lr_multiplier": 1.0, **lion},
        "blocks.1.norm.bias": {"kind": "vector", "lr_multiplier": 1.0, **lion},
        "blocks.0.mlp.0.bias": {"kind": "vector", "lr_multiplier": 1.0, **lion},
        "blocks.0.scale": {"kind": "vector", "lr_multiplier": 1.0, **lion},
    }
    for name, options in expected.items():
        assert route[name] == options
    for name in ("blocks.0.mlp.0.weight", "blocks.1.mlp.2.weight", "blocks.0.attention.in_proj_weight"):
        assert (route[name].get("algorithm", "dion"), route[name]["lr_multiplier"], route[name]["weight_decay"]) == (
            "dion",
            1.0,
            0.03,
        )


@pytest.mark.parametrize("scalar_algorithm", ["lion", "adamw"])
def test_the_scalar_algorithm_holds_for_all_that_is_no_matrix(scalar_algorithm):
    groups = torchdion.param_groups(Transformer(), scalar_algorithm=scalar_algorithm)
    assert {g["algorithm"] for g in groups if g["kind"] in ("embedding", "head", "vector")} == {scalar_algorithm}
    assert not any("algorithm" in g for g in groups if g["kind"] in ("matrix", "transposed"))


@pytest.mark.parametrize("head", [None, "lm_head", ["lm_head"]])
def test_an_embedding_tied_to_the_head_counts_as_the_head(head):
    model = Transformer(tied=True)
    groups = torchdion.param_groups(model, head=head)
    [tied] = [group for group in groups if any(param is model.tokens.weight for _, param in group["params"])]
    assert (tied["kind"], tied["lr_multiplier"], tied["weight_decay"]) == ("head", 0.25, 0.0)
    assert not any(group["kind"] == "embedding" for group in groups)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


@pytest.mark.parametrize("name", ["lm_head", "head", "unembed", "unembedding", "embed_out", "output_projection"])
def test_a_head_is_found_by_its_name_or_by_the_size_of_the_vocabulary(name):
    by_name = nn.ModuleDict({"hidden": nn.Linear(9, 9), name: nn.Linear(9, 30)})
    assert routes(torchdion.param_groups(by_name))[f"{name}.weight"]["lr_multiplier"] == pytest.approx(1 / 3)
    by_size = nn.Sequential(nn.Embedding(30, 9), nn.Linear(9, 9), nn.Linear(9, 30))
    route = routes(torchdion.param_groups(by_size))
    assert [route[f"{i}.weight"]["kind"] for i in range(3)] == ["embedding", "matrix", "head"]


def test_a_layer_as_wide_as_the_vocabulary_is_no_head_beside_one_with_its_name():
    model = nn.ModuleDict({"tokens": nn.Embedding(16, 4), "fc": nn.Linear(4, 16), "lm_head": nn.Linear(4, 16)})
    route = routes(torchdion.param_groups(model))
    assert [route[f"{name}.weight"]["kind"] for name in model] == ["embedding", "matrix", "head"]


def test_heads_given_by_name_replace_the_guess():
    model = nn.ModuleDict(
        {"tokens": nn.Embedding(30, 9), "a": nn.Linear(9, 30), "b": nn.Linear(9, 7), "c": nn.Linear(9, 6)}
    )
    route = routes(torchdion.param_groups(model, head=["b", "c"]))
    assert [route[f"{name}.weight"]["kind"] for name in "abc"] == ["matrix", "head", "head"]
    assert route["b.bias"]["kind"] == "vector"


@pytest.mark.parametrize(
    ("head", "named"), [("lm_heda", "lm_heda"), (["lm_head", "none"], "none"), ("blocks", "blocks"), ("", "")]
)
def test_a_head_that_is_no_module_with_a_weight_is_refused(head, named):
    with pytest.raises(
        ValueError, match=rf"^torchdion.param_groups: head must name a module with a weight of .*, got '{named}'$"
    ):
        torchdion.param_groups(Transformer(), head=head)


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"scalar_algorithm": "dion"}, ValueError, "scalar_algorithm must be one of 'lion', 'adamw', got 'dion'"),
        ({"scalar_algorithm": None}, ValueError, "scalar_algorithm must be one of 'lion', 'adamw', got None"),
        ({"weight_decay": -0.1}, ValueError, "weight_decay must be a finite number ≥ 0 .*, got -0.1"),
        ({"head": 3}, (TypeError, ValueError), "head must .*got 3"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(options, error, sentence):
    with pytest.raises(error, match=rf"^torchdion.*{sentence}"):
        torchdion.Dion(torchdion.param_groups(Transformer(), **options))


def test_a_model_is_required():
    with pytest.raises(TypeError, match=r"^torchdion.param_groups: model must be .*got list"):
        torchdion.param_groups([nn.Parameter(torch.ones(3))])


def test_convolutions_are_matrices_and_transposed_ones_have_their_fan_in_first():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 4, 3), nn.Conv1d(4, 5, 2), nn.BatchNorm2d(8))
    groups = torchdion.param_groups(model)
    route = routes(groups)
    for index, fan_in_first in ((0, False), (1, True), (2, False)):
        assert "algorithm" not in route[f"{index}.weight"]
        assert route[f"{index}.weight"]["fan_in_first"] is fan_in_first
    assert route["3.weight"]["kind"] == route["0.bias"]["kind"] == "vector"
    optimizer = torchdion.Dion(groups)  # and no warning about three dimensions
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    assert optimizer.state[model[1].weight]["Q"].shape == (36, 8)
    assert optimizer.state[model[0].weight]["Q"].shape == (8, 8)


@pytest.mark.filterwarnings("error")
def test_convolutions_and_experts_do_not_warn_but_raw_parameters_of_three_dimensions_do_once():
    """They may be convolutions or stacks of matrices."""
    torchdion.Dion(torchdion.param_groups(nn.Sequential(nn.Conv1d(3, 4, 5), nn.ConvTranspose1d(4, 3, 5))))
    model = Transformer()
    torchdion.Dion(torchdion.param_groups(model))
    for block in model.blocks:
        block.kernel = nn.Parameter(torch.randn(7, 5, 6))
        block.stack = nn.Parameter(torch.randn(4, 5, 6))
    with pytest.warns(UserWarning) as seen:
        torchdion.Dion(torchdion.param_groups(model))
    assert [str(warning.message) for warning in seen] == [
        "torchdion.param_groups: no layer and no name says what these parameters are: 'blocks.*.kernel', taken by "
        "shape for one matrix each (batch_dims=0); 'blocks.*.stack', taken by shape for stacks of matrices "
        "(batch_dims=1); where this is wrong, set batch_dims in the group"
    ]


def test_a_frozen_or_empty_model_has_no_groups():
    assert torchdion.param_groups(nn.ReLU()) == []
    assert torchdion.param_groups(nn.Linear(3, 3).requires_grad_(False)) == []


def test_modules_used_twice_are_routed_once():
    shared = nn.Linear(5, 5)
    groups = torchdion.param_groups(nn.Sequential(shared, nn.ReLU(), shared))
    assert sum(len(group["params"]) for group in groups) == 2


def test_the_factor_of_the_head_is_the_step_of_its_weights():
    model = Transformer()
    optimizer = torchdion.Dion([g for g in torchdion.param_groups(model) if g["kind"] == "head"], lr=0.08)
    before = model.lm_head.weight.detach().clone()
    model.lm_head.weight.grad = torch.randn_like(before)
    optimizer.step()
    moved: Tensor = (model.lm_head.weight - before).abs()
    assert (moved - 0.08 / math.sqrt(16)).abs().max() <= 1e-6
