"""A state dict that is refused leaves the optimizer as it was; the sentence names the parameter and the key."""

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from refused import assert_refused_before_any_write, matrix, trained, untrained
from runs import follow
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter
from wrapped import Copying, Refusing

import torchdion


def put(index: int, key: str, value: Any) -> Callable[[dict], None]:
    return lambda saved: saved["state"][index].__setitem__(key, value)


def option(key: str, value: Any) -> Callable[[dict], None]:
    return lambda saved: saved["param_groups"][4].__setitem__(key, value)


def freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


STEP = "the state 'step' of parameter 0 .* must be a whole number from 0 to 16777216, got "
Q_SHAPE = (
    r"the state 'Q' of parameter 0 \(parameter group 4\) must have the shape \[5, r\] or \[4, r\] with 1 ≤ r ≤ 4, "
)
SPOILED = {  # the state dict of refused.trained(), from the last parameter of the last group
    "Q of other rows": (put(4, "Q", torch.zeros(6, 2)), Q_SHAPE + r"got \[6, 2\]"),
    "Q of too high a rank": (put(4, "Q", torch.zeros(5, 5)), Q_SHAPE + r"got \[5, 5\]"),
    "Q of no rank": (put(4, "Q", torch.zeros(5, 0)), Q_SHAPE + r"got \[5, 0\]"),
    "Q of one dimension": (put(4, "Q", torch.zeros(5)), Q_SHAPE + r"got \[5\]"),
    "Q of a stack": (put(4, "Q", torch.zeros(2, 5, 2)), Q_SHAPE + r"got \[2, 5, 2\]"),
    "Q of no stack": (
        put(1, "Q", torch.zeros(5, 2)),
        r"'Q' of parameter 0 \(parameter group 1\) must have the shape \[3, 5, r\] or \[3, 4, r\] .* got \[5, 2\]",
    ),
    "Q of integers": (
        put(4, "Q", torch.zeros(5, 2).int()),
        "'Q' of parameter 0 .* dense floating-point .* torch.int32",
    ),
    "a sparse momentum": (put(4, "momentum", torch.eye(5, 4).to_sparse()), "'momentum' of parameter 0 .*sparse_coo"),
    "a str as momentum": (put(4, "momentum", "zeros"), "'momentum' of parameter 0 .* must be a tensor, got str"),
    "None as Q": (put(4, "Q", None), "'Q' of parameter 0 .* must be a tensor, got NoneType"),
    "momentum of another shape": (put(4, "momentum", torch.zeros(4, 5)), r"'momentum' .* \(5, 4\), got \(4, 5\)"),
    "momentum of Lion": (put(2, "momentum", torch.zeros(8)), r"'momentum' .*group 2\) must .* \(7,\), got \(8,\)"),
    "variance": (put(3, "variance", torch.zeros(2, 4)), r"'variance' .*group 3\) must .* \(8,\), got \(2, 4\)"),
    "no Q": (lambda saved: saved["state"][4].pop("Q"), "parameter 0 .* lacks the tensor 'Q'"),
    "no momentum": (lambda saved: saved["state"][2].pop("momentum"), "parameter 0 .* lacks the tensor 'momentum'"),
    "no variance": (lambda saved: saved["state"][3].pop("variance"), "parameter 0 .* lacks the tensor 'variance'"),
    "a step of NaN": (put(4, "step", torch.tensor(math.nan)), STEP + "nan"),
    "a step beyond what FP32 counts": (put(4, "step", torch.tensor(1e30)), STEP + r"1\.0.*e\+30"),
    "an integer step beyond it": (put(3, "step", 10**400), STEP + "1000"),
    "half a step": (put(2, "step", 2.5), STEP + "2.5"),
    "a step on the meta device": (put(4, "step", torch.zeros((), device="meta")), STEP + r"a Tensor of shape \(\)"),
    "a momentum on the meta device": (
        put(4, "momentum", torch.zeros(5, 4, device="meta")),
        "'momentum' of parameter 0 .* must have memory, got meta without any",
    ),
    "a freed Q": (put(4, "Q", freed(torch.ones(5, 2))), "'Q' of parameter 0 .* must have memory, got cpu without any"),
    "a momentum that no one can read": (
        put(4, "momentum", Refusing(torch.ones(5, 4))),
        "'momentum' of parameter 0 .* must have memory of its own or be read by copy_.., got a Refusing",
    ),
    "a fake Q": (
        put(4, "Q", FakeTensorMode().from_tensor(torch.ones(5, 2))),
        "'Q' of parameter 0 .* must have memory of its own .* got a FakeTensor",
    ),
    "a quantized momentum": (
        put(4, "momentum", torch.quantize_per_tensor(torch.ones(5, 4), 0.1, 0, torch.quint8)),
        "'momentum' of parameter 0 .* dense floating-point",
    ),
    "a freed state of no use": (put(4, "extra", freed(torch.ones(2))), "'extra' of parameter 0 .* must have memory"),
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
    "names of other parameters": (option("param_names", ["a", "b"]), "'param_names' must be one str for each"),
    "another policy in one group": (
        option("nonfinite", "raise"),
        r"nonfinite must be the same in all groups, got 'raise' \(parameter group 4 of the state dict\) beside 'prop",
    ),
    "an infinite step": (put(3, "step", math.inf), "'step' of parameter 0 .* got inf"),
    "a negative step": (put(2, "step", torch.tensor(-2.0)), "'step' of parameter 0 .* got -2.0"),
    "two steps": (put(4, "step", torch.ones(2)), r"'step' of parameter 0 .* got a Tensor of shape \(2,\)"),
    "a str as step": (put(4, "step", "7"), "'step' of parameter 0 .* got '7'"),
    "a complex step": (put(4, "step", torch.tensor(1j)), "'step' of parameter 0 .* got 1j"),
    "a list as state": (
        lambda saved: saved["state"].__setitem__(4, [1]),
        "state of parameter 0 .* be a dict, got list",
    ),
    "mu": (option("mu", 1.5), r"mu must be in \[0, 1\), got 1.5 \(parameter group 4 of the state dict\)"),
    "lr": (option("lr", "fast"), r"lr must be a finite number .* got 'fast' \(parameter group 4 of the state dict\)"),
    "algorithm": (option("algorithm", "muon"), "algorithm must be one of"),
    "another algorithm": (option("algorithm", "adamw"), "parameter 0 .* lacks the tensor 'variance'"),
    "blocks": (option("blocks", 3), "blocks must divide the 5 rows"),
    "batch_dims": (option("batch_dims", -1), "batch_dims must be None or an integer ≥ 0, got -1"),
    "no params": (lambda saved: saved["param_groups"][4].pop("params"), r"with the list 'params' \(parameter group 4"),
    "a group too few": (lambda saved: saved["param_groups"].pop(), "different number of parameter groups: 4, .* 5"),
    "a parameter too many": (option("params", [4, 5]), "doesn't match the size of the optimizer's: 2 parameters, .* 1"),
    "no state": (lambda saved: saved.pop("state"), r"must have the dict 'state', got the keys \['param_groups'\]"),
    "no groups": (lambda saved: saved.pop("param_groups"), "must have the list 'param_groups'"),
    "a list as groups' state": (lambda saved: saved.__setitem__("state", []), "must have the dict 'state'"),
    "a str as group": (lambda saved: saved["param_groups"].__setitem__(4, "last"), "a parameter group must be a dict"),
}


@pytest.mark.parametrize("make", [trained, untrained])
@pytest.mark.parametrize("spoiled", SPOILED)
def test_a_spoiled_state_dict_is_refused_whole(spoiled, make):
    saved = copy.deepcopy(trained()[1].state_dict())
    for state in saved["state"].values():  # what a partial load would leave behind
        state["momentum"] = state["momentum"] + 1
    for group in saved["param_groups"]:
        group["lr"] = 7.0
    spoil, sentence = SPOILED[spoiled]
    spoil(saved)
    params, optimizer = make()
    kept = optimizer.state_dict()
    assert_refused_before_any_write(
        params, optimizer, ValueError, "^torchdion.Dion: .*" + sentence, lambda: optimizer.load_state_dict(saved)
    )
    assert str(optimizer.state_dict()) == str(kept)
    optimizer.step()


def test_states_that_no_parameter_has_load_as_torch_loads_them():
    """They are kept, whatever they are, and nothing reads them."""
    optimizer = trained(capturable=True)[1]
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"] |= {99: None, "scheduler": {"step": "last"}}
    optimizer.load_state_dict(saved)
    optimizer.step()
    assert optimizer.stats()["state_bytes"] == trained(capturable=True)[1].stats()["state_bytes"]
    kept = optimizer.state_dict()["state"]
    assert kept[99] is None
    assert kept["scheduler"] == {"step": "last"}


@pytest.mark.parametrize("value", [None, [], "checkpoint", 3])
def test_what_is_no_state_dict_is_refused(value):
    params, optimizer = trained()
    sentence = rf"^torchdion.Dion: state_dict must be a dict, got {type(value).__name__}$"
    assert_refused_before_any_write(params, optimizer, TypeError, sentence, lambda: optimizer.load_state_dict(value))


@pytest.mark.parametrize("foreign", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad])
def test_the_state_of_another_optimizer_is_refused(foreign):
    Y = matrix()
    other = foreign([Y], **({"momentum": 0.9} if foreign is torch.optim.SGD else {}))
    follow(other, [Y], [[torch.ones(6, 4)]])
    X = matrix()
    optimizer = torchdion.Dion([X])
    follow(optimizer, [X], [[torch.ones(6, 4)]])
    sentence = "^torchdion.Dion: the state of parameter 0 .* lacks the tensor 'momentum': .* another optimizer"
    assert_refused_before_any_write(
        [X], optimizer, ValueError, sentence, lambda: optimizer.load_state_dict(other.state_dict())
    )


def test_the_state_of_another_model_is_refused_with_the_name_of_the_parameter():
    def of(width: int) -> tuple[nn.Module, torchdion.Dion]:
        model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))
        optimizer = torchdion.Dion(model.named_parameters())
        follow(optimizer, list(model.parameters()), [[torch.ones_like(param) for param in model.parameters()]])
        return model, optimizer

    model, optimizer = of(8)
    saved = of(6)[1].state_dict()
    sentence = r"^torchdion.Dion: the state 'momentum' of parameter '0.weight' .* \(8, 4\), got \(6, 4\)$"
    assert_refused_before_any_write(
        list(model.parameters()), optimizer, ValueError, sentence, lambda: optimizer.load_state_dict(saved)
    )


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file_reaches_no_optimizer(kept):
    params, optimizer = trained()
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    cut = io.BytesIO(buffer.getvalue()[: int(kept * len(buffer.getvalue()))])
    assert_refused_before_any_write(
        params,
        optimizer,
        Exception,  # torch's own, of several classes
        "PytorchStreamReader|seek",
        lambda: optimizer.load_state_dict(torch.load(cut, weights_only=True)),
    )


def test_what_a_hook_makes_of_a_state_dict_is_checked():
    params, optimizer = trained()
    spoiled = copy.deepcopy(optimizer.state_dict())
    spoiled["state"][4]["Q"] = torch.zeros(9, 9)
    hook = optimizer.register_load_state_dict_pre_hook(lambda *_: spoiled)
    saved = optimizer.state_dict()
    assert_refused_before_any_write(params, optimizer, ValueError, Q_SHAPE, lambda: optimizer.load_state_dict(saved))
    hook.remove()
    optimizer.load_state_dict(saved)


def test_a_refused_checkpoint_does_not_mend_a_broken_optimizer():
    optimizer = trained()[1]
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer._broken = "the last step failed after 1 of 3 batches"
    with pytest.raises(ValueError, match="must have the dict 'state'"):
        optimizer.load_state_dict({"param_groups": saved["param_groups"]})
    with pytest.raises(RuntimeError, match=r"after 1 of 3 batches; load a checkpoint$"):
        optimizer.step()
    optimizer.load_state_dict(saved)
    optimizer.step()


def test_an_empty_state_and_one_of_zero_size_load():
    params = [Parameter(torch.zeros(0, 5)), Parameter(torch.zeros(4, 3))]
    optimizer = torchdion.Dion(params)
    optimizer.load_state_dict(torchdion.Dion(params).state_dict())
    follow(optimizer, params, [[torch.zeros(0, 5), torch.ones(4, 3)]])
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.state[params[1]]["step"] == 1


def test_tensors_that_can_be_read_load_as_the_plain_ones_that_they_look_like():
    """Wrapped, expanded, transposed, tracked by autograd, of another dtype, and integers as steps."""
    params, optimizer = trained()
    saved = copy.deepcopy(optimizer.state_dict())
    states = saved["state"]
    states[0]["momentum"] = Copying(states[0]["momentum"])
    states[1]["momentum"] = states[1]["momentum"].mT.contiguous().mT.double()
    states[2]["momentum"] = torch.full((), 3.0).expand(7)
    states[3]["variance"] = states[3]["variance"].requires_grad_()
    states[4]["step"] = torch.tensor(2, dtype=torch.int16)
    plain = copy.deepcopy(optimizer.state_dict())
    plain["state"][2]["momentum"] = torch.full((7,), 3.0)
    optimizer.load_state_dict(saved)
    for param, expected in zip(params, plain["state"].values(), strict=True):
        for key, value in expected.items():
            loaded = optimizer.state[param][key]
            assert type(loaded) is torch.Tensor
            assert loaded.is_contiguous()
            assert not loaded.requires_grad
            assert torch.equal(loaded, value)
    optimizer.step()


def test_a_load_that_fails_after_torch_has_replaced_the_state_changes_nothing():
    params, optimizer = trained()
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0]["momentum"] += 1

    def fail(_: torchdion.Dion) -> None:
        raise ValueError("a hook of the program's own")

    hook = optimizer.register_load_state_dict_post_hook(fail)
    assert_refused_before_any_write(
        params, optimizer, ValueError, "a hook of the program's own", lambda: optimizer.load_state_dict(saved)
    )
    hook.remove()
    optimizer.step()


def test_a_count_of_steps_stays_where_fp32_can_count_no_further():
    params, optimizer = trained()
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        state["step"] = torch.tensor(2.0**24 - 1)
    optimizer.load_state_dict(saved)
    for _ in range(2):
        optimizer.step()
        assert {float(optimizer.state[param]["step"]) for param in params} == {2.0**24}
    optimizer.load_state_dict(optimizer.state_dict())
    assert all(param.isfinite().all() for param in params)
