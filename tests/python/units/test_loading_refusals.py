"""A state dict that is refused leaves the optimizer as it was; the sentence names the parameter and the key."""

import copy
import io

import pytest
import torch
from broken import break_
from refused import assert_refused_before_any_write, matrix, trained, untrained
from runs import follow
from spoiled import Q_SHAPE, SPOILED
from torch import nn
from torch.nn import Parameter
from wrapped import Copying

import torchdion


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
    sentence = (
        r"^torchdion.Dion: the state momentum of parameter '0.weight' .* \[8, 4\] must have that shape, got \[6, 4\]$"
    )
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
    break_(optimizer, "the last step failed after 1 of 3 batches")
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
