"""Parameters of PEFT's adapters are recognized by names and shapes, without PEFT."""

import warnings

import pytest
import torch
from torch import nn

import torchdion


def routed(name: str, shape: tuple[int, ...]) -> dict:
    """The group of a parameter of this name, whose modules are dicts; a warning is an error."""
    *path, holder, key = name.split(".")
    parameter = nn.Parameter(torch.ones(shape))
    if key == "weight":
        model: nn.Module = type("Adapter", (nn.Module,), {})()
        model.weight = parameter
    else:
        model = nn.ParameterDict({key: parameter})
    for part in reversed([*path, holder]):
        model = nn.ModuleDict({part: model})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [group] = torchdion.param_groups(model)
    assert [found for found, _ in group["params"]] == [name]
    return group


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("embed_tokens.trainable_tokens_delta.default", (3, 8)),
        ("embed_tokens.token_adapter.trainable_tokens_delta.mine", (3, 8)),
        ("wte.lora_embedding_A.default", (4, 30)),
        ("wte.hira_embedding_A.default", (4, 30)),
    ],
)
@pytest.mark.parametrize("prefix", ["", "base_model.model."])
def test_rows_of_an_embedding_are_an_embedding_without_decay(prefix, name, shape):
    group = routed(prefix + name, shape)
    assert (group["kind"], group["algorithm"], group["weight_decay"]) == ("embedding", "lion", 0)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("q_proj.oft_R.default.weight", (4, 28)),
        ("q_proj.oft_r.default", (4, 28)),
        ("q_proj.hra_u.default", (32, 8)),
        ("q_proj.c3a_kernel.default", (2, 2, 8)),
        ("q_proj.vblora_logits_A.default", (4, 2, 90)),
        ("vblora_vector_bank.default", (90, 16)),
        ("q_proj.randlora_lambda.default", (4, 8)),
        ("q_proj.lora_magnitude_vector.default.weight", (1, 32, 1, 1)),
        ("q_proj.ia3_l.default", (32, 1)),
        ("q_proj.vera_lambda_b.default", (32,)),
        ("q_proj.lora_E.default", (8, 1)),
        ("prompt_encoder.prefix_task_cols.default", (3, 4, 2)),
    ],
)
def test_packed_entries_and_coefficients_are_vectors(name, shape):
    group = routed(name, shape)
    assert (group["kind"], group["algorithm"]) == ("vector", "lion")


@pytest.mark.parametrize(
    ("name", "shape", "batch_dims"),
    [
        ("q_proj.lora_A.default", (8, 32), None),
        ("wte.lora_embedding_B.default", (32, 4), None),
        ("q_proj.hada_w1_a.default", (32, 8), None),
        ("q_proj.lokr_w1.default", (4, 4), None),
        ("conv.lokr_w2.default", (8, 8, 3, 3), 0),
        ("conv.hada_t1.default", (8, 8, 3, 1), 0),
        ("q_proj.boft_R.default", (2, 8, 4, 4), 2),
        ("q_proj.poly_lora_A.default", (1, 4, 32, 8), 2),
        ("q_proj.gralora_B.default", (2, 4, 16), 1),
        ("q_proj.miss_block.default", (4, 32), None),
        ("q_proj.osf_svd_params.U_low", (32, 16), None),
    ],
)
def test_factors_are_matrices_or_stacks_or_kernels_of_them(name, shape, batch_dims):
    group = routed(name, shape)
    assert "algorithm" not in group
    assert group.get("batch_dims") == batch_dims


@pytest.mark.parametrize("base", ["base_layer", "original_module", "modules_to_save.default"])
def test_a_head_is_one_under_the_names_of_peft(base):
    layer: nn.Module = nn.Linear(8, 30, bias=False)
    for part in reversed(base.split(".")):
        layer = nn.ModuleDict({part: layer})
    model = nn.ModuleDict({"embed_tokens": nn.Embedding(30, 8), "lm_head": layer})
    kinds = {name: group["kind"] for group in torchdion.param_groups(model) for name, _ in group["params"]}
    assert kinds == {"embed_tokens.weight": "embedding", f"lm_head.{base}.weight": "head"}


def test_the_factors_of_a_head_are_no_head():
    """The second is as wide as the vocabulary."""
    head = nn.ModuleDict(
        {
            "base_layer": nn.Linear(8, 30, bias=False),
            "lora_A": nn.ModuleDict({"default": nn.Linear(8, 2, bias=False)}),
            "lora_B": nn.ModuleDict({"default": nn.Linear(2, 30, bias=False)}),
        }
    )
    model = nn.ModuleDict({"embed_tokens": nn.Embedding(30, 8), "lm_head": head})
    model.requires_grad_(False)
    head["lora_A"].requires_grad_(True)
    head["lora_B"].requires_grad_(True)
    assert {group["kind"] for group in torchdion.param_groups(model)} == {"matrix"}
