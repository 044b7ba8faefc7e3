"""What a parameter is, by its module and its name: a matrix, in which form, or none."""

import re
import warnings

import pytest
import torch
from architectures import ARCHITECTURES
from fake_world import fake_world, mesh_of
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import Parameter

import torchdion

STACK = {"batch_dims": 1, "fan_in_first": False, "skip_zero_gradients": True}
FUSED = STACK | {"blocks": 2}
TRANSPOSED = STACK | {"fan_in_first": True}
ROWS = {"batch_dims": 0, "blocks": 3, "skip_zero_gradients": True}
CONVOLUTION = {"batch_dims": 0, "fan_in_first": False}
GUESSED_STACK = {"batch_dims": 1, "fan_in_first": False}
# What the sentence about guessed forms says of an architecture.
GUESSED = {
    "xlnet": ", ".join(f"'transformer.layer.*.rel_attn.{key}'" for key in "qkvor")
    + ", taken by shape for one matrix each",
    "recurrent-gemma": ", ".join(
        f"'model.layers.*.temporal_block.rg_lru.{gate}_gate_weight'" for gate in ("input", "recurrent")
    )
    + ", taken by shape for stacks of matrices",
}

FORMS = {
    "mixtral": {"experts.gate_up_proj": FUSED, "experts.down_proj": STACK, "mlp.gate.weight": {}},
    "qwen3-moe": {"experts.gate_up_proj": FUSED, "experts.down_proj": STACK},
    "deepseek-v3": {"experts.gate_up_proj": FUSED, "experts.down_proj": STACK, "shared_experts.up_proj.weight": {}},
    "gpt-oss": {"experts.gate_up_proj": TRANSPOSED, "experts.down_proj": TRANSPOSED},
    "llama4": {"experts.gate_up_proj": TRANSPOSED, "experts.down_proj": TRANSPOSED},
    "dbrx": {"mlp.w1": ROWS, "mlp.v1": ROWS, "mlp.w2": ROWS},
    "xlnet": {f"layer.1.rel_attn.{key}": CONVOLUTION for key in "qkvor"},
    "recurrent-gemma": {f"rg_lru.{gate}_gate_weight": GUESSED_STACK for gate in ("input", "recurrent")},
    "siglip": {"attention.in_proj_weight": {"blocks": 3}},
    "wav2vec2": {"conv.parametrizations.weight.original1": CONVOLUTION},
    "mamba": {"mixer.x_proj.weight": {}, "mixer.conv1d.weight": CONVOLUTION},
}
NO_MATRICES = {
    "gpt-oss": ["experts.gate_up_proj_bias", "experts.down_proj_bias"],
    "vit": ["embeddings.cls_token", "embeddings.position_embeddings"],
    "swin": ["relative_position_bias_table"],
    "siglip": ["head.probe"],
    "mamba": ["mixer.A_log"],
    "rwkv": ["attention.time_mix_key", "feed_forward.time_mix_receptance", "attention.time_decay"],
    "wav2vec2": ["conv.parametrizations.weight.original0"],
}


def route_of(model: nn.Module, suffix: str) -> dict:
    groups = [
        group
        for group in torchdion.param_groups(model)
        if any(re.search(rf"(^|\.){re.escape(suffix)}$", name) for name, _ in group["params"])
    ]
    assert len(groups) == 1
    return {key: value for key, value in groups[0].items() if key != "params"}


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return ARCHITECTURES[name]()


@pytest.mark.parametrize(("name", "suffix"), [(name, suffix) for name in FORMS for suffix in FORMS[name]])
def test_each_matrix_of_an_architecture_has_its_form(name, suffix):
    route = route_of(on_meta(name), suffix)
    assert "algorithm" not in route
    form = {key: route[key] for key in ("batch_dims", "blocks", "fan_in_first", "skip_zero_gradients") if key in route}
    assert form == FORMS[name][suffix]


@pytest.mark.parametrize(("name", "suffix"), [(name, suffix) for name in NO_MATRICES for suffix in NO_MATRICES[name]])
def test_what_only_looks_like_a_matrix_has_the_rule_of_vectors(name, suffix):
    route = route_of(on_meta(name), suffix)
    assert (route["kind"], route.get("algorithm", "dion"), route["lr_multiplier"], route["weight_decay"]) == (
        "vector",
        "lion",
        1,
        0,
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_architecture_is_warned_of_but_once_of_what_was_guessed(name):
    model = ARCHITECTURES[name]()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer = torchdion.Dion(torchdion.param_groups(model))
        for param in model.parameters():
            param.grad = torch.zeros_like(param)
        optimizer.step()
    sentences = [str(warning.message) for warning in seen if issubclass(warning.category, UserWarning)]
    assert len(sentences) == (name in GUESSED)
    assert all(
        sentence.startswith(
            f"torchdion.param_groups: no layer and no name says what these parameters are: {GUESSED[name]} (batch_dims="
        )
        for sentence in sentences
    )


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("pos_embed", (1, 7, 8)),
        ("class_token", (2, 8)),
        ("register_tokens", (4, 8)),
        ("query_tokens", (1, 4, 8)),
        ("queries", (4, 8)),
        ("rel_pos_h", (9, 8)),
        ("gate_up_proj_bias", (3, 8)),
        ("bias_k", (1, 1, 8)),
        ("gamma", (8, 1, 1)),
        ("logit_scale", (4, 1, 1)),
        ("scale_shift_table", (6, 8)),
        ("codebook", (2, 5, 8)),
        ("emb_rel_k", (1, 9, 8)),
        ("pos_embed_window", (1, 4, 8)),
        ("mask_emb", (2, 8)),
        ("label_embeddings_concat", (5, 8)),
        ("rpb", (2, 5, 5)),
        ("visual_prompt", (1, 4, 8)),
        ("dt_proj_bias", (2, 8)),
        ("layer_scale_1", (8, 2)),
        ("weight_g", (4, 2)),
        ("A_log", (8, 4)),
        ("D", (4, 8)),
        ("dt_bias", (4, 8)),
        ("b_Q", (4, 8)),
        ("q_norm_weight", (4, 8)),
        ("wte", (9, 8)),
        ("plane", (1, 4, 9, 9)),
        ("triplanes", (3, 4, 9, 9)),
        ("voxel_grid", (1, 4, 6, 6, 6)),
        ("time_decay", (4, 8)),
        ("time_faaaa", (4, 8)),
    ],
)
@pytest.mark.filterwarnings("error::UserWarning")
def test_raw_parameters_by_their_names(key, shape):
    module = nn.Module()
    module.register_parameter(key, Parameter(torch.zeros(shape)))
    assert route_of(module, key)["kind"] == "vector"


@pytest.mark.parametrize(
    "key",
    [
        *("fc1_weight", "text_projection", "kernel", "time_decay_w1", "prompts_visual_projection", "embed_proj", "W_g"),
        *("w_beta", "dt_proj_weight", "token_proj", "wq", "W1", "weight_ih_l0", "input_proj_w", "lora_A", "in_proj"),
    ],
)
@pytest.mark.filterwarnings("error::UserWarning")
def test_other_raw_parameters_are_matrices(key):
    module = nn.Module()
    module.register_parameter(key, Parameter(torch.zeros(6, 4)))
    assert route_of(module, key)["kind"] == "matrix"


@pytest.mark.parametrize("old", [False, True])
def test_weight_norm_leaves_a_matrix_and_its_gains(old):
    norm = nn.utils.weight_norm if old else nn.utils.parametrizations.weight_norm
    direction, gain = ("weight_v", "weight_g") if old else ("original1", "original0")
    for layer, form in ((nn.Linear(6, 4), {}), (nn.ConvTranspose1d(6, 4, 3), CONVOLUTION | {"fan_in_first": True})):
        route = route_of(norm(layer), direction)
        assert "algorithm" not in route
        assert form.items() <= route.items()
        assert route_of(layer, gain)["kind"] == "vector"


@pytest.mark.parametrize(
    ("key", "shape", "batch_dims"),
    [
        ("dt_proj_weight", (2, 8, 4), 1),  # Zamba's
        ("r_kernel", (8, 2, 4), 0),  # Funnel's
        ("weight", (2, 6, 4), 1),  # ConvBERT's groups
        ("kernel", (6, 4, 3), 0),
        ("square", (4, 4, 4), 1),
        ("heads", (3, 4, 8, 6), 2),  # layers first
        ("mixers", (2, 3, 4, 9, 7), 3),
        ("filters", (16, 8, 5, 5), 0),
        ("filters", (8, 4, 3, 3, 3), 0),
        ("modulated", (1, 16, 12, 3, 3), 1),
        ("bank", (4, 16, 12, 3, 3), 1),
        ("weight", (64, 32, 4, 4), 0),
        ("weight", (1, 8, 9), 1),
        ("weight", (6, 4), 0),  # which may be a table
    ],
)
def test_the_form_of_several_dimensions_is_guessed_by_the_shape(key, shape, batch_dims):
    model = nn.ModuleDict({"7": nn.Module()})
    model["7"].register_parameter(key, Parameter(torch.ones(shape)))
    what = "stacks of matrices" if batch_dims else "one matrix each"
    sentence = f"'*.{key}', taken by shape for {what} (batch_dims={batch_dims}); where this is wrong, set batch_dims"
    with pytest.warns(UserWarning, match=re.escape(sentence)):
        assert route_of(model, key)["batch_dims"] == batch_dims


UNKNOWN = {
    "composition": (6, 4),
    "points": (9, 2),
    "seeds": (1, 16, 8),
    "r_rel": (9, 4, 3),
    "field": (1, 8, 16, 16),
    "state": (1, 4, 6, 6, 6),
    "cube": (1, 4, 5, 5, 5),
    "constant": (1, 12, 4, 4),
    "wide": (40, 2, 8, 8),
}


@pytest.mark.parametrize("key", UNKNOWN)
def test_what_neither_name_nor_shape_tells_is_updated_as_a_vector_and_a_warning_names_it(key):
    model = nn.ModuleDict({"3": nn.Module()})
    model["3"].register_parameter(key, Parameter(torch.ones(UNKNOWN[key])))
    sentence = (
        f"no layer and no name says what these parameters are: '*.{key}', updated as vectors; leave algorithm out of "
        "the group of a matrix, and set batch_dims in that of a stack"
    )
    with pytest.warns(UserWarning, match=re.escape(sentence)):
        route = route_of(model, key)
    assert route == {"kind": "unknown", "algorithm": "lion", "lr_multiplier": 1.0, "weight_decay": 0.0}


def unsure_model() -> nn.Module:
    model = nn.Module()
    model.layers = nn.ModuleList(nn.Module() for _ in range(2))
    for layer in model.layers:
        layer.kernel = Parameter(torch.ones(7, 5, 6))
        layer.composition = Parameter(torch.ones(6, 4))
        layer.heads = Parameter(torch.ones(2, 3, 8, 6))
    model.seeds = Parameter(torch.ones(1, 16, 8))
    model.linear = nn.Linear(4, 4)
    return model


def test_one_sentence_of_a_model_names_all_that_is_guessed_or_unknown():
    with pytest.warns(UserWarning) as seen:
        groups = torchdion.param_groups(unsure_model())
    assert [str(warning.message) for warning in seen] == [
        "torchdion.param_groups: no layer and no name says what these parameters are: 'layers.*.kernel', taken by "
        "shape for one matrix each (batch_dims=0); 'layers.*.heads', taken by shape for stacks of matrices "
        "(batch_dims=2); 'seeds', 'layers.*.composition', updated as vectors; where this is wrong, set batch_dims in "
        "the group, and leave algorithm out of that of a matrix"
    ]
    assert [group["kind"] for group in groups] == ["matrix", "matrix", "matrix", "vector", "unknown"]


def test_strict_refuses_what_is_guessed_or_unknown_in_one_sentence():
    sentence = (
        "torchdion.param_groups: strict must be False where no layer and no name says what a parameter is, got True "
        "with 'seeds', 'layers.*.kernel', 'layers.*.composition', 'layers.*.heads'; freeze them for this call and give "
        "them a group of their own, with batch_dims for a stack"
    )
    model = unsure_model()
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        torchdion.param_groups(model, strict=True)


@pytest.mark.filterwarnings("error::UserWarning")
def test_what_strict_refuses_may_have_a_group_of_its_own():
    model = unsure_model()
    unsure = [(name, param) for name, param in model.named_parameters() if not name.startswith("linear")]
    for _, param in unsure:
        param.requires_grad_(False)
    groups = torchdion.param_groups(model, strict=True)
    for _, param in unsure:
        param.requires_grad_(True)
    stacks = [(name, param) for name, param in unsure if name.endswith("heads")]
    others = [(name, param) for name, param in unsure if not name.endswith("heads")]
    groups += [{"params": stacks, "batch_dims": 2}, {"params": others, "algorithm": "lion"}]
    optimizer = torchdion.Dion(groups)
    for param in model.parameters():
        param.grad = torch.randn_like(param)
    optimizer.step()
    assert optimizer.state[model.layers[0].heads]["Q"].shape[:2] == (2, 3)


def test_a_group_that_says_otherwise_makes_a_matrix_of_the_unknown():
    model = nn.Module()
    model.composition = Parameter(torch.randn(6, 4))
    with pytest.warns(UserWarning, match="'composition', updated as vectors"):
        [group] = torchdion.param_groups(model)
    del group["algorithm"]
    optimizer = torchdion.Dion([group])
    model.composition.grad = torch.randn(6, 4)
    optimizer.step()
    assert "Q" in optimizer.state[model.composition]


@pytest.mark.parametrize("strict", [1, "yes", None])
def test_strict_is_true_or_false(strict):
    with pytest.raises(TypeError, match=rf"^torchdion.param_groups: strict must be True or False, got {strict!r}$"):
        torchdion.param_groups(nn.Linear(3, 3), strict=strict)


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in GUESSED])
def test_nothing_of_an_architecture_is_unknown(name):
    torchdion.param_groups(on_meta(name), strict=True)


def test_a_stack_of_layers_of_experts_is_orthonormalized_matrix_by_matrix():
    model = nn.ModuleDict({"experts": nn.Module()})
    model["experts"].up = Parameter(torch.ones(4, 3, 8, 6))
    model["experts"].gate_up_proj = Parameter(torch.ones(4, 3, 12, 8))
    assert route_of(model, "up") == route_of(model, "up") | {"batch_dims": 2, "skip_zero_gradients": True}
    assert route_of(model, "gate_up_proj") == route_of(model, "gate_up_proj") | {"batch_dims": 2, "blocks": 2}


def test_the_experts_of_dbrx_are_orthonormalized_one_by_one():
    model = ARCHITECTURES["dbrx"]()
    optimizer = torchdion.Dion(torchdion.param_groups(model))
    for param in model.parameters():
        param.grad = torch.randn_like(param)
    optimizer.step()
    experts = model.transformer.blocks[0].ffn.experts.mlp
    assert all(optimizer.state[param]["Q"].shape == (3, 24, 24) for param in (experts.w1, experts.v1, experts.w2))


class GroupedExperts(nn.Module):
    """torchtitan's."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = Parameter(torch.randn(3, 12, 8))
        self.w2 = Parameter(torch.randn(3, 8, 12))
        self.w3 = Parameter(torch.randn(3, 12, 8))


def test_grouped_experts_are_stacks():
    assert all(STACK.items() <= route_of(GroupedExperts(), key).items() for key in ("w1", "w2", "w3"))


def test_each_matrix_of_a_stack_and_of_an_attention_is_orthonormalized_by_itself():
    model = nn.ModuleDict({"experts": GroupedExperts(), "attention": nn.MultiheadAttention(8, 2)})
    optimizer = torchdion.Dion(torchdion.param_groups(model))
    for param in model.parameters():
        param.grad = torch.randn_like(param)
    optimizer.step()
    assert optimizer.state[model["experts"].w2]["Q"].shape == (3, 8, 8)
    assert optimizer.state[model["attention"].in_proj_weight]["Q"].shape == (3, 8, 8)


@pytest.mark.parametrize("size", [1, 2])
def test_fused_matrices_that_are_cut_along_their_rows_are_one_matrix_and_a_warning_says_so(size):
    with fake_world(0, size):
        model = nn.Sequential(nn.MultiheadAttention(8, 2))
        fully_shard(model, mesh=mesh_of(fs=size))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            route = route_of(model, "in_proj_weight")
        assert route["blocks"] == (1 if size > 1 else 3)
        sentence = "torchdion.param_groups: '0.in_proj_weight' (1 in all) holds fused matrices and is cut"
        assert [str(warning.message)[: len(sentence)] for warning in seen] == ([sentence] if size > 1 else [])


@pytest.mark.filterwarnings("error::UserWarning")
def test_stacks_that_are_cut_along_their_experts_keep_their_blocks():
    with fake_world(0, 2):
        experts = nn.Module()
        experts.gate_up_proj = Parameter(torch.ones(4, 12, 8))
        experts.down_proj = Parameter(torch.ones(4, 8, 6))
        fully_shard(experts, mesh=mesh_of(fs=2))
        assert route_of(experts, "gate_up_proj")["blocks"] == 2


@pytest.mark.filterwarnings("error::UserWarning")
def test_norms_of_several_dimensions_and_bilinear_layers_are_known():
    assert route_of(nn.LayerNorm((3, 4)), "weight")["kind"] == "vector"
    torchdion.Dion(torchdion.param_groups(nn.Bilinear(3, 4, 5)))


@pytest.mark.parametrize("name", ["prompts", "pos_embeds", "scale"])
def test_the_parameters_of_a_list_go_by_its_name(name):
    model = nn.Module()
    model.register_module(name, nn.ParameterList([torch.ones(4, 8)]))
    assert route_of(model, f"{name}.0")["kind"] == "vector"
    model.register_module("weights", nn.ParameterDict({"mine": torch.ones(4, 8)}))
    assert route_of(model, "weights.mine")["kind"] == "matrix"


def test_a_parameter_with_one_long_side_is_a_vector_whatever_its_name():
    module = nn.Module()
    module.kernel = Parameter(torch.ones(1, 1, 8))
    assert route_of(module, "kernel")["kind"] == "vector"


@pytest.mark.parametrize(("concatenated", "form"), [(True, FUSED), (False, STACK)])
def test_experts_that_are_interleaved_along_the_rows_are_one_matrix_each(concatenated, form):
    experts = nn.Module()
    experts.gate_up_proj = Parameter(torch.ones(4, 12, 8))
    experts.down_proj = Parameter(torch.ones(4, 8, 6))
    experts.is_concatenated = concatenated
    group = route_of(experts, "gate_up_proj")
    assert {key: group[key] for key in FUSED if key in group} == form


def test_a_convolution_that_is_called_as_the_linear_of_gpt2_is_a_convolution():
    class Conv1D(nn.Conv1d):
        pass

    class Causal(Conv1D):
        pass

    for convolution in (Conv1D, Causal):
        group = route_of(convolution(4, 8, 3), "weight")
        assert (group["batch_dims"], group["fan_in_first"]) == (0, False)
