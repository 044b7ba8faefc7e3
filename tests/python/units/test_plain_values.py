"""A value is judged by its use: what works as a number, a flag or two numbers is one, at construction and later."""

import copy
import warnings
from collections import UserList, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch
from refused import assert_refused_before_any_write, trained
from torch.nn import Parameter

import torchdion
from torchdion.table import OPTIONS


class Two(IntEnum):
    value_ = 2


# Option → the value that is given, and the value that it means.
NUMBERS: dict[str, list[tuple[Any, Any]]] = {
    "lr": [(numpy.array(0.25), 0.25), (numpy.float32(0.25), 0.25), (numpy.array(1), 1), (Decimal("0.25"), 0.25)],
    "mu": [(numpy.array(0.5), 0.5), (numpy.float16(0.5), 0.5), (Fraction(1, 2), 0.5), (numpy.longdouble(0.5), 0.5)],
    "weight_decay": [(numpy.array(0.5, dtype=numpy.float32), 0.5), (numpy.int8(1), 1)],
    "epsilon": [(numpy.array(1e-3), 1e-3)],
    "lr_multiplier": [(numpy.array(3), 3), (numpy.float64(0.5), 0.5)],
    "rank_fraction": [(numpy.array(0.5), 0.5), (Fraction(1, 2), 0.5)],
    "rank_multiple_of": [(numpy.array(2), 2), (numpy.int64(2), 2), (Two.value_, 2)],
    "seed": [(numpy.uint8(7), 7), (numpy.array(-7), -7)],
    "batch_dims": [(numpy.array(0), 0), (numpy.array(1), 1), (numpy.int32(0), 0)],
    "blocks": [(numpy.array(2), 2), (numpy.int16(3), 3)],
    "fan_in_first": [(numpy.array(True), True), (numpy.bool_(True), True)],
    "nesterov": [(numpy.array(True), True), (numpy.bool_(False), False)],
    "maximize": [(numpy.bool_(True), True)],
    "cautious_wd": [(numpy.array(True), True)],
    "skip_zero_gradients": [(numpy.bool_(True), True)],
    "orientation": [(numpy.str_("left"), "left")],
}
BETAS: dict[str, Any] = {
    "a list": [0.5, 0.75],
    "an array": numpy.array([0.5, 0.75]),
    "an array of halves": numpy.array([0.5, 0.75], dtype=numpy.float16),
    "arrays without dimensions": (numpy.array(0.5), numpy.array(0.75)),
    "a configuration's list": UserList([0.5, 0.75]),
    "a deque": deque([Fraction(1, 2), Decimal("0.75")]),
}
CASES = [(name, given, value) for name, cases in NUMBERS.items() for given, value in cases] + [
    ("betas", given, (0.5, 0.75)) for given in BETAS.values()
]
NAMES = [f"{name}={given!r}" for name, given, _ in CASES]


def made(**group: Any) -> torchdion.Dion:
    generator = torch.Generator().manual_seed(0)
    params = [Parameter(torch.randn(shape, generator=generator)) for shape in ((6, 4), (7,))]
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator)
    return torchdion.Dion([{"params": params, **group}], scalar_algorithm="adamw")


def weights(optimizer: torchdion.Dion) -> list[torch.Tensor]:
    return optimizer.param_groups[0]["params"]


def is_same(value: Any, expected: Any) -> bool:
    """As saved: of the same value and, but for an integer in the place of a number, of Python's own types."""
    return value == expected and type(value) in (type(expected), int, float, tuple)


@pytest.mark.parametrize(("name", "given", "value"), CASES, ids=NAMES)
@pytest.mark.parametrize("when", ["constructed", "written", "loaded"])
def test_what_is_used_as_a_number_trains_as_pythons_own(name, given, value, when):
    optimizer, twin = made(**({name: given} if when == "constructed" else {})), made(**{name: value})
    if when == "written":
        optimizer.param_groups[0][name] = given
    if when == "loaded":
        saved = optimizer.state_dict()
        saved["param_groups"][0][name] = given
        optimizer.load_state_dict(saved)
    optimizer.stats()
    copy.deepcopy(optimizer)
    for each in (optimizer, twin):
        each.step()
    assert all(map(torch.equal, weights(optimizer), weights(twin)))
    assert is_same(optimizer.state_dict()["param_groups"][0][name], value)


@pytest.mark.parametrize("name", [name for name in NUMBERS if name in ("lr", "mu", "rank_multiple_of", "maximize")])
def test_arguments_of_the_class_are_judged_as_those_of_groups(name):
    for given, value in NUMBERS[name]:
        optimizer = torchdion.Dion([Parameter(torch.zeros(6, 4))], **{name: given})
        assert is_same(optimizer.param_groups[0][name], value)
        assert is_same(optimizer.defaults[name], value)


def test_every_option_of_a_number_takes_an_array_of_one():
    """Also options that are added later."""
    for name, option in OPTIONS.items():
        initial = option["default"]
        if isinstance(initial, (bool, int, float)) and name not in ("capturable", "delayed"):
            optimizer = made()
            optimizer.param_groups[0][name] = numpy.array(initial)
            optimizer.step()


def test_betas_that_say_what_the_defaults_say_are_not_warned_of():
    """A group whose algorithm has none may repeat them, whatever their type."""
    X = Parameter(torch.zeros(6, 4))
    group = {"params": [X], "algorithm": "muon", "betas": numpy.array([0.9, 0.99])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torchdion.Dion([group], betas=(0.9, 0.99))


REFUSED: dict[str, tuple[Any, str]] = {
    "a set": ({0.5, 0.75}, r"a set, \{0\.\d+, 0\.\d+\}"),
    "a dict": ({0.5: 1, 0.75: 2}, r"a dict, \{0.5: 1, 0.75: 2\}"),
    "a tensor": (torch.tensor([0.5, 0.75]), r"a Tensor, tensor\(\[0.5000, 0.7500\]\)"),
    "tensors": ((torch.tensor(0.5), 0.75), r"\(tensor\(0.5000\), 0.75\)"),
    "three": (numpy.array([0.5, 0.75, 0.5]), r"(array\(\[|\()0.5 *, 0.75, 0.5 *\]?\)"),
    "a column": (numpy.array([[0.5], [0.75]]), r"array\(\[\[0.5 *\], \[0.75\]\]\)"),
    "flags": (numpy.array([False, False]), r"array\(\[False, False\]\)"),
    "bytes": (b"\0\0", r"b'\\x00\\x00'"),
    "what is gone once it is read": ((beta for beta in (0.5, 0.75)), "<generator object"),
}


@pytest.mark.parametrize(("value", "shown"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_pair_is_refused_by_its_type(value, shown):
    sentence = rf"^torchdion.Dion: betas must be None or two numbers in \[0, 1\), got {shown}"
    with pytest.raises(ValueError, match=sentence):
        torchdion.Dion([Parameter(torch.zeros(6, 4))], betas=value)
    params, optimizer = trained()
    optimizer.param_groups[-1]["betas"] = value
    assert_refused_before_any_write(params, optimizer, ValueError, sentence)


@pytest.mark.parametrize("name", ["mu", "seed", "maximize"])
def test_a_tensor_in_the_place_of_a_number_is_refused_by_its_type(name):
    with pytest.raises(ValueError, match=rf"^torchdion.Dion: {name} must be .*, got a Tensor, tensor\(0.5000\)$"):
        torchdion.Dion([Parameter(torch.zeros(6, 4))], **{name: torch.tensor(0.5)})


def test_what_others_keep_in_groups_stays_what_it_is():
    kept = {"kind": Two.value_, "ratio": Fraction(1, 3), "sizes": UserList([1, 2]), "scale": numpy.float32(0.5)}
    group = made(**kept).param_groups[0]
    assert all(group[name] is kept[name] for name in ("kind", "ratio", "sizes"))
    assert type(group["scale"]) is float


def test_other_numbers_are_judged_so_too():
    """Arguments of methods, of a gradient scaler, of the dion package and of its classes."""
    optimizer = made()
    optimizer.step()
    optimizer.resize_rank(numpy.float32(0.5), numpy.array(1))
    assert optimizer.state_dict()["param_groups"][0]["rank_fraction"] == 0.5
    optimizer, twin = made(), made()
    optimizer.grad_scale, optimizer.found_inf = numpy.float32(2), numpy.array(0)
    twin.grad_scale = torch.tensor(2.0)
    for each in (optimizer, twin):
        each.step()
    assert all(map(torch.equal, weights(optimizer), weights(twin)))
    torchdion.Dion([Parameter(torch.zeros(6, 4))], replicate_mesh_grad_sync=numpy.bool_(False))
    groups = [
        {"params": [Parameter(torch.zeros(8, 4))], "num_heads": numpy.int64(2)},
        {"params": [Parameter(torch.zeros(8, 4))], "split_sizes": numpy.array([4, 4])},
        {"params": [Parameter(torch.zeros(8, 4))], "split_sizes": UserList([2] * 4)},
    ]
    muon = torchdion.Muon(groups, flatten=numpy.bool_(True), use_polar_express=numpy.bool_(True))
    assert [group["blocks"] for group in muon.param_groups] == [2, 2, 4]


Pair = namedtuple("Pair", "x y")


def test_tuples_of_others_keep_their_classes_and_state_dicts_leave_a_group_alone() -> None:
    counts = (numpy.int64(1), 2)
    kept = {"cfg": Pair(1, 2), "size": torch.Size([6, 4]), "plain": (1, 2)}
    [group] = made(**kept, counts=counts).param_groups
    assert all(group[name] is value for name, value in kept.items())
    assert type(group["counts"][0]) is int
    optimizer = made()
    [group] = optimizer.param_groups
    optimizer.step()
    group |= {**kept, "scale": numpy.float32(0.5)}
    before = dict(group)
    optimizer.state_dict()
    assert all(group[name] is value for name, value in before.items() if name != "scale")


def test_the_rate_of_an_array_follows_it_after_a_state_dict_too() -> None:
    rate = numpy.array(0.1)
    optimizer = made()
    [group] = optimizer.param_groups
    group["lr"] = rate
    optimizer.step()
    saved = optimizer.state_dict()["param_groups"][0]["lr"]
    assert type(saved) is float
    before = [weight.detach().clone() for weight in weights(optimizer)]
    rate[...] = 0
    optimizer.step()
    assert all(map(torch.equal, weights(optimizer), before))
