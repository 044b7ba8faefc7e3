"""State dicts of refused.trained() that no optimizer may load, spoiled from the last parameter of the last group on."""

import math
from collections.abc import Callable
from typing import Any

import torch
from exotic import inside_of_vmap
from torch._subclasses.fake_tensor import FakeTensorMode
from wrapped import Refusing


def put(index: int, key: str, value: Any) -> Callable[[dict], None]:
    return lambda saved: saved["state"][index].__setitem__(key, value)


def option(key: str, value: Any) -> Callable[[dict], None]:
    return lambda saved: saved["param_groups"][4].__setitem__(key, value)


def freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


STEP = "the state step of parameter 0 .* must be a whole number from 0 to 16777216, got "
Q_SHAPE = r"the state Q of parameter 0 \(parameter group 4\) must have the shape \[5, r\] or \[4, r\] with 1 ≤ r ≤ 4, "
SPOILED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "Q of other rows": (put(4, "Q", torch.zeros(6, 2)), Q_SHAPE + r"got \[6, 2\]"),
    "Q of too high a rank": (put(4, "Q", torch.zeros(5, 5)), Q_SHAPE + r"got \[5, 5\]"),
    "Q of no rank": (put(4, "Q", torch.zeros(5, 0)), Q_SHAPE + r"got \[5, 0\]"),
    "Q of one dimension": (put(4, "Q", torch.zeros(5)), Q_SHAPE + r"got \[5\]"),
    "Q of a stack": (put(4, "Q", torch.zeros(2, 5, 2)), Q_SHAPE + r"got \[2, 5, 2\]"),
    "Q of no stack": (
        put(1, "Q", torch.zeros(5, 2)),
        r"Q of parameter 0 \(parameter group 1\) must have the shape \[3, 5, r\] or \[3, 4, r\] .* got \[5, 2\]",
    ),
    "Q of integers": (
        put(4, "Q", torch.zeros(5, 2).int()),
        "Q of parameter 0 .* dense floating-point .*int32",
    ),
    "a sparse momentum": (put(4, "momentum", torch.eye(5, 4).to_sparse()), "momentum of parameter 0 .*sparse_coo"),
    "a str as momentum": (put(4, "momentum", "zeros"), "momentum of parameter 0 .* must be a tensor, got str"),
    "None as Q": (put(4, "Q", None), "Q of parameter 0 .* must be a tensor, got NoneType"),
    "momentum of another shape": (
        put(4, "momentum", torch.zeros(4, 5)),
        r"momentum .* of shape \[5, 4\] must have that shape, got \[4, 5\]",
    ),
    "momentum of Lion": (put(2, "momentum", torch.zeros(8)), r"momentum .*group 2\) of shape \[7\] must .*, got \[8\]"),
    "variance": (put(3, "variance", torch.zeros(2, 4)), r"variance .*group 3\) of shape \[8\] must .*, got \[2, 4\]"),
    "no Q": (lambda saved: saved["state"][4].pop("Q"), "parameter 0 .* lacks the tensor 'Q'"),
    "no momentum": (lambda saved: saved["state"][2].pop("momentum"), "parameter 0 .* lacks the tensor 'momentum'"),
    "no variance": (lambda saved: saved["state"][3].pop("variance"), "parameter 0 .* lacks the tensor 'variance'"),
    "a step of NaN": (put(4, "step", torch.tensor(math.nan)), STEP + "nan"),
    "a step beyond what FP32 counts": (put(4, "step", torch.tensor(1e30)), STEP + r"1\.0.*e\+30"),
    "an integer step beyond it": (put(3, "step", 10**400), STEP + "1000"),
    "half a step": (put(2, "step", 2.5), STEP + "2.5"),
    "a step on the meta device": (put(4, "step", torch.zeros((), device="meta")), STEP + r"a Tensor of shape \[\]"),
    "a momentum on the meta device": (
        put(4, "momentum", torch.zeros(5, 4, device="meta")),
        "momentum of parameter 0 .* must have memory, got meta without any",
    ),
    "a momentum that has left torch.func": (
        put(4, "momentum", inside_of_vmap(torch.ones(5, 4))),
        "momentum of parameter 0 .* must have memory",
    ),
    "a freed Q": (put(4, "Q", freed(torch.ones(5, 2))), "Q of parameter 0 .* must have memory, got cpu without any"),
    "a momentum that no one can read": (
        put(4, "momentum", Refusing(torch.ones(5, 4))),
        "momentum of parameter 0 .* must have memory of its own or be read by copy_.., got a Refusing",
    ),
    "a fake Q": (
        put(4, "Q", FakeTensorMode().from_tensor(torch.ones(5, 2))),
        "Q of parameter 0 .* must have memory of its own .* got a FakeTensor",
    ),
    "a quantized momentum": (
        put(4, "momentum", torch.quantize_per_tensor(torch.ones(5, 4), 0.1, 0, torch.quint8)),
        "momentum of parameter 0 .* dense floating-point",
    ),
    "a freed state of no use": (put(4, "extra", freed(torch.ones(2))), "extra of parameter 0 .* must have memory"),
    "a tensor as state": (
        lambda saved: saved["state"].__setitem__(4, torch.ones(2)),
        "state of parameter 0 .* be a dict, got Tensor",
    ),
    "a parameter twice": (
        lambda saved: saved["param_groups"][4].__setitem__("params", [[4]]),
        "'params' must be distinct numbers or names",
    ),
    "a parameter of another group again": (
        option("params", [0]),
        r"'params' must be distinct numbers or names, got 0 again \(parameter group 4",
    ),
    "a tensor as parameter": (option("params", [torch.ones(2)]), r"'params' must be .* got tensor\(\[1., 1.\]\)"),
    "None as state": (lambda saved: saved["state"].__setitem__(4, None), "state of parameter 0 .* be a dict, got None"),
    "a state of a tensor": (
        lambda saved: saved["state"].__setitem__(torch.ones(2), {}),
        "the keys of 'state' must be numbers or names, got tensor",
    ),
    "a state of None": (lambda saved: saved["state"].__setitem__(None, {}), "numbers or names, got None"),
    "an lr of more digits than Python prints": (option("lr", 10**5000), "lr must be .* got a value of type int"),
    "a dtype that no state has": (option("Q_dtype", torch.int8), "Q_dtype must be None, a floating.* got torch.int8"),
    "names of other parameters": (option("param_names", ["a", 2]), "'param_names' must be a list of str, got .'a', 2."),
    "another policy in one group": (
        option("nonfinite", "raise"),
        r"nonfinite must be the same in all groups, got 'raise' \(parameter group 4 of the state dict\) beside 'prop",
    ),
    "an infinite step": (put(3, "step", math.inf), "step of parameter 0 .* got inf"),
    "a negative step": (put(2, "step", torch.tensor(-2.0)), "step of parameter 0 .* got -2.0"),
    "two steps": (put(4, "step", torch.ones(2)), r"step of parameter 0 .* got a Tensor of shape \[2\]"),
    "a str as step": (put(4, "step", "7"), "step of parameter 0 .* got '7'"),
    "a complex step": (put(4, "step", torch.tensor(1j)), "step of parameter 0 .* got 1j"),
    "a list as state": (
        lambda saved: saved["state"].__setitem__(4, [1]),
        "state of parameter 0 .* be a dict, got list",
    ),
    "mu": (option("mu", 1.5), r"mu must be in \[0, 1\), got 1.5 \(parameter group 4 of the state dict\)"),
    "lr": (option("lr", "fast"), r"lr must be a finite number .* got 'fast' \(parameter group 4 of the state dict\)"),
    "algorithm": (option("algorithm", "sgd"), "algorithm must be one of"),
    "another algorithm": (option("algorithm", "adamw"), "parameter 0 .* lacks the tensor 'variance'"),
    "blocks": (option("blocks", 3), "blocks must divide the 5 rows"),
    "batch_dims": (option("batch_dims", -1), "batch_dims must be None or an integer ≥ 0, got -1"),
    "no params": (lambda saved: saved["param_groups"][4].pop("params"), r"with the list 'params' \(parameter group 4"),
    "a group too few": (lambda saved: saved["param_groups"].pop(), "different number of parameter groups: 4, .* 5"),
    "a parameter too many": (option("params", [4, 5]), "doesn't match the size of the optimizer's: 2 parameters, .* 1"),
    "no state": (lambda saved: saved.pop("state"), r"must have the dict 'state', got the keys \['param_groups'\]"),
    "no groups": (lambda saved: saved.pop("param_groups"), "must have the list 'param_groups'"),
    "a list as all states": (
        lambda saved: saved.__setitem__("state", []),
        "must have the dict 'state', got one of type list",
    ),
    "a str as group": (lambda saved: saved["param_groups"].__setitem__(4, "last"), "a parameter group must be a dict"),
}
"""What spoils a state dict, and a pattern of the sentence that refuses it."""
