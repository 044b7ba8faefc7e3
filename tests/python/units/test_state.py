"""State and checkpoints: complete after one step, native, and exact on resume."""

import copy
import io

import pytest
import torch
from runs import error, follow, normals, run, start
from torch.nn import Parameter

import torchdion

HALF = torchdion.DionMixedPrecisionConfig(
    momentum_dtype=torch.bfloat16, Q_dtype=torch.float16, variance_dtype=torch.float64
)


@pytest.mark.parametrize(
    ("shape", "group", "state"),
    [
        ((12, 8), {"rank_fraction": 0.5}, {"momentum": (12, 8), "Q": (12, 4)}),
        ((12, 8), {"rank_fraction": 0.5, "orientation": "left"}, {"momentum": (12, 8), "Q": (8, 4)}),
        ((8, 12), {"rank_fraction": 0.3}, {"momentum": (8, 12), "Q": (8, 3)}),
        ((12, 2, 3, 1), {"rank_fraction": 0.5}, {"momentum": (12, 2, 3, 1), "Q": (12, 3)}),
        ((12, 2, 3, 1), {"fan_in_first": True}, {"momentum": (12, 2, 3, 1), "Q": (6, 6)}),
        ((5, 4, 6), {"batch_dims": 1}, {"momentum": (5, 4, 6), "Q": (5, 4, 4)}),
        ((2, 5, 4, 6), {"batch_dims": 2, "orientation": "left"}, {"momentum": (2, 5, 4, 6), "Q": (2, 5, 6, 4)}),
        ((12, 3), {"blocks": 3}, {"momentum": (12, 3), "Q": (3, 4, 3)}),
        ((7,), {}, {"momentum": (7,)}),
        ((), {}, {"momentum": ()}),
        ((7,), {"scalar_algorithm": "adamw"}, {"momentum": (7,), "variance": (7,)}),
        ((3, 4), {"algorithm": "adamw"}, {"momentum": (3, 4), "variance": (3, 4)}),
        ((3, 4), {"algorithm": "lion"}, {"momentum": (3, 4)}),
    ],
)
def test_the_state_is_complete_and_no_larger_than_the_paper_says(shape, group, state):
    """m·n + (m or n)·r elements per matrix, and a step counter."""
    X = Parameter(torch.zeros(shape))
    X.grad = torch.ones(shape)
    optimizer = torchdion.Dion([{"params": [X], **group}])
    optimizer.step()
    assert {key: tuple(value.shape) for key, value in optimizer.state[X].items()} == {"step": (), **state}
    assert optimizer.state[X]["step"] == 1
    assert {value.dtype for value in optimizer.state[X].values()} == {torch.float32}
    elements = sum(torch.Size(s).numel() for s in state.values())
    assert optimizer.stats()["state_bytes"] == 4 * (elements + 1)


def everything() -> tuple[list[Parameter], list[list[torch.Tensor]], dict]:
    """One parameter for each algorithm and form, gradients for ten steps, and the options of the optimizer."""
    shapes = [(12, 8), (8, 12), (9, 9), (7,), (6, 5), (4, 6, 5), (), (6, 3, 2, 2)]
    starts, *gradients = normals(11, *shapes, dtype=torch.float32)
    params = [Parameter(X) for X in starts]
    groups = [
        {"params": params[:2], "orientation": "left", "orthonormalize": "rcqr", "rank_fraction": 0.25},
        {"params": params[2:4], "lr": 0.05, "rank_fraction": 0.4},
        {"params": params[4:5], "algorithm": "adamw", "lr_multiplier": 0.3},
        {"params": params[5:6], "batch_dims": 1, "mu": 0.5},
        {"params": params[6:], "scalar_algorithm": "adamw"},
    ]
    return params, gradients, {"params": groups, "lr": 0.02, "seed": 11}


def saved_and_loaded(state_dict: dict, how: str) -> dict:
    if how == "memory":
        return copy.deepcopy(state_dict)
    buffer = io.BytesIO()
    torch.save(state_dict, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("how", ["memory", "torch.save"])
@pytest.mark.parametrize("config", [None, HALF])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(config, how):
    params, gradients, options = everything()
    optimizer = torchdion.Dion(**options, mixed_precision_config=config)
    follow(optimizer, params, gradients[:4])
    weights = [param.detach().clone() for param in params]
    checkpoint = saved_and_loaded(optimizer.state_dict(), how)
    follow(optimizer, params, gradients[4:])

    resumed, _, options = everything()
    with torch.no_grad():
        for param, weight in zip(resumed, weights, strict=True):
            param.copy_(weight)
    another = torchdion.Dion(**options, mixed_precision_config=config)
    another.load_state_dict(checkpoint)
    follow(another, resumed, gradients[4:])
    assert all(map(torch.equal, params, resumed))
    for param, twin in zip(params, resumed, strict=True):
        assert optimizer.state[param].keys() == another.state[twin].keys()
        for key, value in optimizer.state[param].items():
            assert torch.equal(value, another.state[twin][key])
            assert value.dtype == another.state[twin][key].dtype


def test_the_options_of_a_checkpoint_are_loaded_with_it():
    params, gradients, options = everything()
    optimizer = torchdion.Dion(**options)
    follow(optimizer, params, gradients[:2])
    options = everything()[2]
    plain = torchdion.Dion([{"params": group["params"]} for group in options["params"]], lr=1.0)
    plain.load_state_dict(optimizer.state_dict())
    for group, loaded in zip(optimizer.param_groups, plain.param_groups, strict=True):
        assert all(loaded[key] == value for key, value in group.items() if key != "params")


def test_a_loaded_state_shares_no_memory_with_the_checkpoint():
    params, gradients, options = everything()
    optimizer = torchdion.Dion(**options)
    follow(optimizer, params, gradients[:2])
    checkpoint = optimizer.state_dict()
    kept = copy.deepcopy(checkpoint["state"])
    twins, _, options = everything()
    another = torchdion.Dion(**options)
    another.load_state_dict(checkpoint)
    follow(another, twins, gradients[2:4])
    for index, state in checkpoint["state"].items():
        for key, value in state.items():
            assert torch.equal(value, kept[index][key]), f"{key} of parameter {index} was changed through the copy"


@pytest.mark.parametrize("param_dtype", [torch.float32, torch.bfloat16])
def test_states_have_and_keep_their_configured_dtypes(param_dtype):
    X, b = Parameter(torch.zeros(12, 8, dtype=param_dtype)), Parameter(torch.zeros(5, dtype=param_dtype))
    options = {"mixed_precision_config": HALF, "scalar_algorithm": "adamw", "rank_fraction": 0.5}
    optimizer = torchdion.Dion([X, b], **options)
    start(optimizer)
    another = torchdion.Dion([X, b], **options)
    another.load_state_dict(saved_and_loaded(optimizer.state_dict(), "torch.save"))
    for state in (optimizer.state, another.state):
        assert state[X]["momentum"].dtype == state[b]["momentum"].dtype == torch.bfloat16
        assert state[X]["Q"].dtype == torch.float16
        assert state[b]["variance"].dtype == torch.float64
        assert state[X]["step"].dtype == torch.float32
    plain = torchdion.Dion([X, b], scalar_algorithm="adamw", rank_fraction=0.5)
    start(plain)
    another.load_state_dict(plain.state_dict())
    assert another.state[X]["Q"].dtype in (torch.float16, param_dtype), "as configured, or as the loaded groups say"


@pytest.mark.parametrize("config_as", ["argument", "group"])
def test_wider_states_than_the_parameter_lose_nothing_on_loading(config_as):
    """FP64 momentum of an FP32 parameter: torch casts loaded states to the parameter's dtype."""
    [X0], *gradients = normals(3, (12, 8), dtype=torch.float32)
    wide = torchdion.DionMixedPrecisionConfig(momentum_dtype=torch.float64)
    X = Parameter(X0.clone())
    if config_as == "argument":
        optimizer = torchdion.Dion([X], mixed_precision_config=wide)
    else:
        optimizer = torchdion.Dion([{"params": [X], "momentum_dtype": torch.float64}])
    follow(optimizer, [X], gradients)
    M = optimizer.state[X]["momentum"].clone()
    assert M.dtype == torch.float64
    assert not torch.equal(M, M.float().double())
    optimizer.load_state_dict(optimizer.state_dict())
    assert torch.equal(optimizer.state[X]["momentum"], M)


def test_a_group_may_have_its_own_mixed_precision_config():
    """README: a parameter group may set any of the options."""
    X = Parameter(torch.zeros(12, 8))
    optimizer = torchdion.Dion([{"params": [X], "mixed_precision_config": HALF}])
    start(optimizer)
    assert optimizer.state[X]["momentum"].dtype == torch.bfloat16


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-4), (torch.bfloat16, 0.05)])
def test_the_dtype_of_the_state_changes_only_rounding(dtype, bound):
    [X0], *gradients = normals(10, (20, 12), dtype=torch.float32)
    config = torchdion.DionMixedPrecisionConfig(momentum_dtype=dtype, Q_dtype=dtype)
    options = {"rank_fraction": 0.25, "lr": 0.1}
    [X] = run([X0], gradients, mixed_precision_config=config, **options)
    assert 0 < error(X, run([X0], gradients, **options)[0], X0) <= bound


def test_a_checkpoint_from_before_an_option_existed_gets_its_default():
    params, gradients, options = everything()
    optimizer = torchdion.Dion(**options)
    follow(optimizer, params, gradients[:2])
    old = copy.deepcopy(optimizer.state_dict())
    for group in old["param_groups"]:
        for name in ("blocks", "fan_in_first", "rcqr_oversample", "momentum_dtype", "lr_multiplier", "nonfinite"):
            del group[name]
    twins, _, options = everything()
    another = torchdion.Dion(**options)
    another.load_state_dict(old)
    for group in another.param_groups:
        assert (group["blocks"], group["fan_in_first"], group["rcqr_oversample"], group["lr_multiplier"]) == (
            1,
            False,
            1.25,
            1,
        )
    follow(another, twins, gradients[2:4])


def test_a_checkpoint_of_the_dion_package_loads():
    """Its groups have beta1 and beta2 and no betas; its states have the same names, and no step of their own."""
    X, b = Parameter(torch.zeros(12, 8)), Parameter(torch.zeros(5))
    optimizer = torchdion.Dion([{"params": [X]}, {"params": [b], "algorithm": "lion"}])
    momentum, Q = torch.randn(12, 8), torch.randn(8, 4)
    shared = {"lr": 0.02, "mu": 0.9, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "epsilon": 1e-8, "step": 7}
    checkpoint = {
        "state": {0: {"momentum": momentum.clone(), "Q": Q.clone()}, 1: {"momentum": torch.ones(5)}},
        "param_groups": [
            {**shared, "algorithm": "dion", "rank_fraction": 0.5, "params": [0]},
            {**shared, "algorithm": "lion", "params": [1]},
        ],
    }
    optimizer.load_state_dict(checkpoint)
    assert optimizer.param_groups[1]["betas"] == (0.9, 0.95)
    assert optimizer.param_groups[0]["mu"] == 0.9
    assert torch.equal(optimizer.state[X]["Q"], Q)
    follow(optimizer, [X, b], [[torch.randn(12, 8), torch.ones(5)]])
    assert optimizer.state[X]["Q"].shape == (8, 4), "it keeps its orientation and its rank"
    assert X.detach().norm() > 0


def test_scheduled_betas_survive_loading_when_given_as_beta1_and_beta2():
    b = Parameter(torch.zeros(5))
    optimizer = torchdion.Dion([{"params": [b], "algorithm": "adamw", "beta1": 0.8, "beta2": 0.9}])
    optimizer.param_groups[0]["betas"] = (0.5, 0.9)  # as OneCycleLR does
    another = torchdion.Dion([{"params": [b], "algorithm": "adamw"}])
    another.load_state_dict(optimizer.state_dict())
    assert another.param_groups[0]["betas"] == (0.5, 0.9)


def test_a_state_dict_hook_may_replace_what_is_loaded():
    X = Parameter(torch.zeros(6, 4))
    optimizer = torchdion.Dion([X])
    start(optimizer)
    replaced = copy.deepcopy(optimizer.state_dict())
    replaced["state"][0]["momentum"] += 1
    optimizer.register_load_state_dict_pre_hook(lambda _optimizer, _state_dict: replaced)
    optimizer.load_state_dict(optimizer.state_dict())
    assert torch.equal(optimizer.state[X]["momentum"], torch.ones(6, 4))


def test_lr_scale_of_a_group_without_our_options_is_left_to_the_schedules_that_know_it():
    optimizer = torchdion.Dion([Parameter(torch.zeros(6, 4))])
    optimizer.load_state_dict({"state": {}, "param_groups": [{"params": [0], "lr": 0.1, "lr_scale": 0.5}]})
    [group] = optimizer.param_groups
    assert (group["lr_scale"], group["lr_multiplier"]) == (0.5, 1.0)
