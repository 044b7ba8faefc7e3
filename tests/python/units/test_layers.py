"""Layers of other packages are recognized by class, parameters or name."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import Parameter

import torchdion


def of_class(name: str, **sizes: tuple[int, ...]) -> nn.Module:
    """A module of a class of this name, as packages have them that are not installed here, with such parameters."""
    module = type(name, (nn.Module,), {})()
    for key, shape in sizes.items():
        module.register_parameter(key, Parameter(torch.ones(shape)))
    return module


def kinds(model: nn.Module, **options: object) -> dict[str, str]:
    """Parameter → its group's kind; a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        groups = torchdion.param_groups(model, **options)
    return {name: group["kind"] for group in groups for name, _ in group["params"]}


def kind_of(module: nn.Module, key: str = "weight", name: str = "layer") -> str:
    return kinds(nn.ModuleDict({"body": nn.Linear(8, 8), name: module}))[f"{name}.{key}"]


@pytest.mark.parametrize(
    "name",
    [
        *("Linear", "ColumnParallelLinear", "RowParallelLinear", "TELayerNormColumnParallelLinear", "LayerNormLinear"),
        *(
            "Linear8bitLt",
            "LinearNF4",
            "LinearWithBias",
            "FusedDense",
            "OutputProjection",
            "NormedLinear",
            "QuantLinear",
        ),
    ],
)
def test_what_ends_in_linear_is_a_matrix_whatever_its_package(name):
    assert kind_of(of_class(name, weight=(12, 8))) == "matrix"


@pytest.mark.parametrize(
    "name", ["VocabParallelEmbedding", "ParallelEmbedding", "StableEmbedding", "Embed", "TokenTable"]
)
def test_an_embedding_is_one_whatever_its_package(name):
    assert kind_of(of_class(name, weight=(12, 8))) == "embedding"


@pytest.mark.parametrize("name", ["PatchEmbedding", "TimestepEmbedding"])
def test_a_projection_that_is_called_an_embedding_is_a_matrix(name):
    """An embedding has no bias of its rows."""
    assert kind_of(of_class(name, weight=(32, 48), bias=(32,))) == "matrix"


@pytest.mark.parametrize("name", ["TokenEmbedding", "PositionalEmbedding"])
def test_an_embedding_may_have_a_bias_of_what_it_returns(name):
    assert kind_of(of_class(name, weight=(32, 48), bias=(48,))) == "embedding"


@pytest.mark.parametrize("name", ["FusedLayerNorm", "MixedFusedRMSNorm", "BatchNormAct2d", "RMSNormGated"])
def test_a_norm_of_another_package_is_a_vector_in_all_its_dimensions(name):
    assert kinds(of_class(name, weight=(12, 8), gain=(2, 3))) == {"weight": "vector", "gain": "vector"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "embedding") for name in ("wte", "embed_tokens", "tok_embeddings", "word_embeddings", "vocab")),
        *((name, "matrix") for name in ("q_proj", "wq", "fc1", "hidden", "gate", "c_attn", "dense_h_to_4h", "router")),
        *((name, "head") for name in ("lm_head", "head", "unembed", "output")),
        *((name, "vector") for name in ("norm1", "final_layernorm", "ln_f")),
    ],
)
def test_a_module_of_an_unknown_class_is_known_by_its_name(name, kind):
    model = nn.ModuleDict(
        {"tokens": nn.Embedding(4, 8), "layers": nn.ModuleList(), name: of_class("Mine", weight=(12, 8))}
    )
    assert kinds(model)[f"{name}.weight"] == kind


def test_the_members_of_a_list_go_by_its_name():
    model = nn.ModuleDict({"embeddings": nn.ModuleList([of_class("Mine", weight=(12, 8)) for _ in range(2)])})
    assert kinds(model) == {"embeddings.0.weight": "embedding", "embeddings.1.weight": "embedding"}


@pytest.mark.parametrize(("bias", "fan_in_first"), [(12, None), (8, True)])
def test_a_bias_says_that_a_weight_is_linear_and_where_its_inputs_stand(bias, fan_in_first):
    """An embedding has none, whatever it is called."""
    model = nn.ModuleDict({"time_embed": of_class("Mine", weight=(12, 8), bias=(bias,))})
    [group] = [group for group in torchdion.param_groups(model) if group["kind"] != "vector"]
    assert "algorithm" not in group
    assert group.get("fan_in_first") is fan_in_first


def test_the_fused_layers_of_transformer_engine_are_matrices_with_their_norms_as_vectors():
    mlp = of_class("LayerNormMLP", layer_norm_weight=(8,), fc1_weight=(32, 8), fc2_weight=(8, 32), fc1_bias=(32,))
    assert kinds(mlp) == {
        "layer_norm_weight": "vector",
        "fc1_weight": "matrix",
        "fc2_weight": "matrix",
        "fc1_bias": "vector",
    }
    assert set(kinds(of_class("GroupedLinear", weight0=(8, 4), weight1=(8, 4))).values()) == {"matrix"}


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_megatron_model_is_routed_as_its_layers_would_be_by_torch(wrapped):
    model = nn.ModuleDict(
        {
            "embedding": nn.ModuleDict({"word_embeddings": of_class("VocabParallelEmbedding", weight=(64, 8))}),
            "decoder": nn.ModuleDict(
                {
                    "linear_qkv": of_class("TELayerNormColumnParallelLinear", layer_norm_weight=(8,), weight=(24, 8)),
                    "linear_proj": of_class("RowParallelLinear", weight=(8, 8), bias=(8,)),
                }
            ),
            "output_layer": of_class("ColumnParallelLinear", weight=(64, 8)),
        }
    )
    prefix = "module.module." if wrapped else ""
    whole = nn.ModuleDict({"module": nn.ModuleDict({"module": model})}) if wrapped else model
    assert {name.removeprefix(prefix): kind for name, kind in kinds(whole).items()} == {
        "embedding.word_embeddings.weight": "embedding",
        "decoder.linear_qkv.layer_norm_weight": "vector",
        "decoder.linear_qkv.weight": "matrix",
        "decoder.linear_proj.weight": "matrix",
        "decoder.linear_proj.bias": "vector",
        "output_layer.weight": "head",
    }


def test_the_last_linear_as_wide_as_the_vocabulary_may_be_of_another_package():
    model = nn.ModuleDict(
        {"words": of_class("ParallelEmbedding", weight=(30, 8)), "fc": of_class("FastLinear", weight=(30, 8))}
    )
    assert kinds(model) == {"words.weight": "embedding", "fc.weight": "head"}


def test_a_linear_of_another_package_is_tied_to_its_embedding():
    model = nn.ModuleDict(
        {"words": of_class("TokenTable", weight=(30, 8)), "decode": of_class("FastLinear", weight=(30, 8))}
    )
    model["decode"].weight = model["words"].weight
    assert kinds(model) == {"words.weight": "head"}


def test_the_matrices_of_transformer_lens_have_their_inputs_first():
    heads, width, head, hidden, tokens = 2, 8, 4, 32, 50
    model = nn.ModuleDict(
        {
            "embed": of_class("Embed", W_E=(tokens, width)),
            "pos_embed": of_class("PosEmbed", W_pos=(6, width)),
            "attn": of_class(
                "Attention", W_Q=(heads, width, head), b_Q=(heads, head), W_O=(heads, head, width), b_O=(width,)
            ),
            "mlp": of_class("MLP", W_in=(width, hidden), b_in=(hidden,), W_out=(hidden, width), b_out=(width,)),
            "unembed": of_class("Unembed", W_U=(width, tokens), b_U=(tokens,)),
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        groups = torchdion.param_groups(model)
    found = {name: (g["kind"], g.get("batch_dims"), g.get("fan_in_first")) for g in groups for name, _ in g["params"]}
    assert found == {
        "embed.W_E": ("embedding", None, None),
        "pos_embed.W_pos": ("vector", None, None),
        **{f"attn.W_{key}": ("matrix", 1, True) for key in "QO"},
        **{f"attn.b_{key}": ("vector", None, None) for key in "QO"},
        **{f"mlp.W_{key}": ("transposed", 0, True) for key in ("in", "out")},
        **{f"mlp.b_{key}": ("vector", None, None) for key in ("in", "out")},
        "unembed.W_U": ("head", None, None),
        "unembed.b_U": ("vector", None, None),
    }
    [rate] = [group["lr_multiplier"] for group in groups if group["kind"] == "head"]
    assert rate == pytest.approx(width**-0.5)


@pytest.mark.parametrize(
    ("name", "shape", "batch_dims", "fan_in_first"),
    [
        ("EqualConv2d", (6, 4, 3, 3), 0, False),
        ("Conv2dSame", (6, 4, 4, 4), 0, False),
        ("ModulatedConv2d", (1, 6, 4, 3, 3), 1, False),
        ("SparseConv3d", (6, 3, 3, 3, 4), 0, False),
        ("ConvTranspose2dLayer", (4, 6, 4, 4), 0, True),
        ("EqualDeconv2d", (4, 6, 4, 4), 0, True),
        ("SpectralNormConv2d", (6, 4, 3, 3), 0, False),
    ],
)
def test_convolutions_of_other_packages_are_kernels(name, shape, batch_dims, fan_in_first):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [group] = torchdion.param_groups(of_class(name, weight=shape))
    assert "algorithm" not in group
    assert (group["batch_dims"], group["fan_in_first"]) == (batch_dims, fan_in_first)


def test_the_response_norm_of_a_convolutional_net_is_a_vector():
    assert kind_of(of_class("ConvNextV2GRN", weight=(1, 1, 1, 8))) == "vector"
