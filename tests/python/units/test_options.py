"""Every option is checked at the door: one sentence names it, its value and what is allowed."""

import math
import re

import pytest
import torch
from refused_options import GROUP_REFUSED, REFUSED
from torch.nn import Parameter

import torchdion
from torchdion.options import DEFAULTS
from torchdion.table import options_of


def cases(table: dict) -> list:
    return [
        pytest.param(name, value, words, id=f"{name}={str(value)[:12]}")
        for name, (words, values) in table.items()
        for value in values
    ]


def matrix() -> Parameter:
    return Parameter(torch.zeros(6, 4))


def assert_names(refusal: pytest.ExceptionInfo, name: str, value: object, words: str) -> None:
    sentence = str(refusal.value)
    assert sentence.startswith(f"torchdion.Dion: {name} must be ")
    assert words in sentence
    assert f"got {value!r}" in sentence
    assert "\n" not in sentence.replace(repr(value), "")


@pytest.mark.parametrize(("name", "value", "words"), cases(REFUSED))
def test_an_option_out_of_range_is_refused_at_construction(name, value, words):
    with pytest.raises(ValueError, match=r"^torchdion.Dion: ") as refusal:
        torchdion.Dion([matrix()], **{name: value})
    assert_names(refusal, name, value, words)


@pytest.mark.parametrize(("name", "value", "words"), cases({**REFUSED, **GROUP_REFUSED}))
def test_an_option_out_of_range_is_refused_in_a_group_which_is_not_added(name, value, words):
    optimizer = torchdion.Dion([matrix()])
    before = optimizer.state_dict()
    with pytest.raises(ValueError, match=r" \(parameter group 1\)$") as refusal:
        optimizer.add_param_group({"params": [matrix()], name: value})
    assert_names(refusal, name, value, words)
    assert len(optimizer.param_groups) == 1
    assert optimizer.state_dict() == before


def test_a_huge_integer_is_refused_like_any_other_number():
    with pytest.raises(ValueError, match=r"^torchdion.Dion: lr must be a finite number"):
        torchdion.Dion([matrix()], lr=10**400)


@pytest.mark.parametrize(
    ("option", "values"),
    {
        "lr": [0, 0.0, 5, 0.1, torch.tensor(0.1), torch.tensor([0.1]), torch.tensor(1)],
        "mu": [0, 0.0, 0.999999],
        "betas": [None, (0, 0), [0.9, 0.99]],
        "weight_decay": [0, 3.5, torch.tensor(0.1), torch.tensor([0.1])],
        "epsilon": [0, 1e-300],
        "rank_fraction": [1, 1e-9, 1.0],
        "rank_multiple_of": [1, 10**9],
        "rcqr_oversample": [1, 1.0, 1e9],
        "seed": [0, -1, 2**63 - 1, -(2**63)],
        "orthonormalize": ["auto", "rcqr", "cholesky_qr", "qr"],
    }.items(),
)
def test_values_at_the_edge_of_the_allowed_range_train(option, values):
    for value in values:
        X, b = matrix(), Parameter(torch.zeros(3))
        for scalar_algorithm in ("lion", "adamw"):
            optimizer = torchdion.Dion([X, b], **{"scalar_algorithm": scalar_algorithm, option: value})
            X.grad, b.grad = torch.randn(6, 4), torch.randn(3)
            optimizer.step()
            assert X.isfinite().all()
            assert b.isfinite().all()


@pytest.mark.parametrize(
    ("m", "n", "fraction", "multiple", "r"),
    [
        (100, 300, 0.07, 1, 7),
        (300, 100, 0.071, 1, 8),
        (100, 100, 0.29, 1, 29),
        (10, 10, 1.0, 1, 10),
        (10, 10, 0.01, 1, 1),
        (768, 3072, 0.25, 1, 192),
        (10, 20, 0.5, 4, 8),
        (10, 20, 0.9, 4, 10),
        (10, 20, 0.1, 128, 10),
        (1, 50, 0.5, 1, 1),
        (7, 9, 1 / 3, 1, 3),
    ],
)
def test_the_rank_is_the_ceiling_of_the_fraction_rounded_up_to_the_multiple(m, n, fraction, multiple, r):
    given = {"rank_fraction": fraction, "rank_multiple_of": multiple, "betas": (0.9, 0.9)}
    assert options_of(DEFAULTS | given).piece_of_state_sizes([m, n], [m, n], torchdion._C.Layout())["Q"][-1] == r
    X = Parameter(torch.zeros(m, n))
    X.grad = torch.zeros(m, n)
    optimizer = torchdion.Dion([X], rank_fraction=fraction, rank_multiple_of=multiple, orientation="left")
    optimizer.step()
    assert optimizer.state[X]["Q"].shape == (n, r)


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError, match="rank_frction"):
        torchdion.Dion([matrix()], rank_frction=0.5)
    with pytest.raises(TypeError, match="positional"):
        torchdion.Dion([matrix()], 0.01, 0.95)


WIDE = {"nonfinite": ("zero", "skip_step"), "capturable": (True, False)}


@pytest.mark.parametrize("option", WIDE)
def test_options_of_the_whole_optimizer_are_those_of_the_constructor_or_of_every_group(option):
    value, other = WIDE[option]
    sentence = rf"^torchdion.Dion: {option} holds for the whole optimizer, got .* \(parameter group "
    with pytest.raises(ValueError, match=rf"{sentence}0\)$"):
        torchdion.Dion([{"params": [matrix()], option: other}], **{option: value})
    with pytest.raises(ValueError, match=rf"{sentence}1\)$"):
        torchdion.Dion([{"params": [matrix()]}, {"params": [matrix()], option: value}])
    optimizer = torchdion.Dion([{"params": [matrix()], option: value} for _ in range(2)])
    assert optimizer.defaults[option] == value
    optimizer.add_param_group({"params": [matrix()]})
    optimizer.add_param_group({"params": [matrix()], option: value})
    assert [group[option] for group in optimizer.param_groups] == [value] * 4
    with pytest.raises(ValueError, match=rf"{sentence}4\)$"):
        optimizer.add_param_group({"params": [matrix()], option: other})


@pytest.mark.parametrize("how", ["loaded", "set"])
def test_a_group_that_is_added_has_the_policy_of_the_others(how):
    optimizer = torchdion.Dion([matrix()])
    if how == "loaded":
        optimizer.load_state_dict(torchdion.Dion([matrix()], nonfinite="zero").state_dict())
    else:
        optimizer.param_groups[0]["nonfinite"] = "zero"
    optimizer.add_param_group({"params": [matrix()]})
    optimizer.add_param_group({"params": [matrix()], "nonfinite": "zero"})
    assert [group["nonfinite"] for group in optimizer.param_groups] == ["zero"] * 3
    with pytest.raises(
        ValueError, match=r"nonfinite holds for the whole optimizer, got 'raise' \(parameter group 3\)$"
    ):
        optimizer.add_param_group({"params": [matrix()], "nonfinite": "raise"})


@pytest.mark.parametrize("option", WIDE)
def test_an_option_of_the_whole_optimizer_in_one_group_alone_is_refused_at_the_step_and_at_loading(option):
    optimizer = torchdion.Dion([{"params": [matrix()]}, {"params": [matrix()]}])
    saved = optimizer.state_dict()
    saved["param_groups"][1][option] = optimizer.param_groups[1][option] = WIDE[option][0]
    sentence = rf"^torchdion.Dion: {option} must be the same in all groups, got .* \(parameter group 1{{}}\) beside "
    with pytest.raises(ValueError, match=sentence.format("")):
        optimizer.step()
    if option != "capturable":  # a matter of the run that loads
        with pytest.raises(ValueError, match=sentence.format(" of the state dict")):
            optimizer.load_state_dict(saved)


@pytest.mark.parametrize("option", ["replicate_mesh", "outer_shard_mesh", "inner_shard_mesh"])
def test_distributed_options_of_another_type_are_refused_by_name(option):
    sentence = rf"^torchdion.Dion: {option} must be None, a DeviceMesh or a ProcessGroup, got int$"
    with pytest.raises(ValueError, match=sentence):
        torchdion.Dion([matrix()], **{option: 3})
    torchdion.Dion([matrix()], **{option: None}, replicate_mesh_grad_sync=True)
    with pytest.raises(ValueError, match=r"^torchdion.Dion: replicate_mesh_grad_sync must be True or False, got 3$"):
        torchdion.Dion([matrix()], replicate_mesh_grad_sync=3)


@pytest.mark.parametrize("config", [{"momentum_dtype": torch.float32}, torch.float32, "bf16", {}, 0])
def test_a_mixed_precision_config_of_another_type_is_refused(config):
    with pytest.raises(
        (TypeError, ValueError),
        match=r"^torchdion.Dion: mixed_precision_config must be .*got " + re.escape(repr(config)),
    ):
        torchdion.Dion([matrix()], mixed_precision_config=config)


def test_a_mixed_precision_config_of_wrong_dtypes_is_refused():
    with pytest.raises(ValueError, match=r"^torchdion.Dion: momentum_dtype must be .*, got torch.int64$"):
        torchdion.Dion(
            [matrix()], mixed_precision_config=torchdion.DionMixedPrecisionConfig(momentum_dtype=torch.int64)
        )


def test_blocks_and_fan_in_first_exclude_each_other():
    with pytest.raises(ValueError, match=r"^torchdion.Dion: blocks .* fan_in_first \(parameter group 0\)$"):
        torchdion.Dion([{"params": [matrix()], "blocks": 2, "fan_in_first": True}])


@pytest.mark.parametrize("name", ["beta1", "beta2"])
@pytest.mark.parametrize("value", [1.0, -0.1, math.nan, "0.9"])
def test_beta1_and_beta2_are_checked_like_betas(name, value):
    with pytest.raises(ValueError, match=rf"^torchdion.Dion: {name} must be .*\[0, 1\), got .* \(parameter group 0\)$"):
        torchdion.Dion([{"params": [matrix()], name: value}])


@pytest.mark.parametrize(
    ("group", "defaults", "expected"),
    [
        ({}, {}, (0.95, 0.98)),
        ({}, {"scalar_algorithm": "adamw"}, (0.9, 0.95)),
        ({"algorithm": "adamw"}, {}, (0.9, 0.95)),
        ({"algorithm": "lion"}, {"scalar_algorithm": "adamw"}, (0.95, 0.98)),
        ({"algorithm": "adamw"}, {"betas": (0.5, 0.6)}, (0.5, 0.6)),
        ({"algorithm": "adamw", "betas": (0.1, 0.2)}, {"betas": (0.5, 0.6)}, (0.1, 0.2)),
        ({"algorithm": "adamw", "beta1": 0.7, "beta2": 0.8}, {}, (0.7, 0.8)),
        ({"beta2": 0.8}, {}, (0.95, 0.8)),
    ],
)
def test_betas_are_resolved_when_a_group_is_added(group, defaults, expected):
    optimizer = torchdion.Dion([{"params": [matrix()], **group}], **defaults)
    assert optimizer.param_groups[0]["betas"] == expected
