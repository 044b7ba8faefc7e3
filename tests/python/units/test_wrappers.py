"""Wrapper subclasses as parameters, gradients and states: trained as plain ones are, or refused by name."""

import copy
from collections.abc import Callable

import pytest
import torch
from fake_world import fake_world
from refused import assert_refused_before_any_write, trained
from runs import normals
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import Parameter
from torch.testing._internal.two_tensor import TwoTensor
from wrapped import Copying, Dropping, Halved, Narrowed, OnlyCopying, ReadOnly, Refusing, Showing, Wrapped

import torchdion
from torchdion.table import ALGORITHMS


def twice(tensor: Tensor) -> TwoTensor:
    return TwoTensor(tensor, tensor.clone())


def fake(tensor: Tensor) -> Tensor:
    return FakeTensorMode(allow_non_fake_inputs=True).from_tensor(tensor)


READ = [Showing, Copying, OnlyCopying, Dropping, Halved, twice]
WRITTEN = [Showing, Copying, OnlyCopying, Halved, twice]
REFUSED = [Refusing, fake]


def numbers(tensor: Tensor) -> Tensor:
    """Of a wrapper, read by what its class says of itself."""
    if isinstance(tensor, TwoTensor):
        assert torch.equal(tensor.a, tensor.b)
        return tensor.a
    if isinstance(tensor, Halved):
        return tensor.inner * 2
    return tensor.inner if isinstance(tensor, Wrapped) else tensor


def wrapped(make: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    return make(tensor / 2 if make is Halved else tensor.clone())


def train(algorithm: str, start: Tensor, gradients: list[list[Tensor]]) -> tuple[Tensor, torchdion.Dion]:
    X = Parameter(start)
    optimizer = torchdion.Dion([{"params": [X], "algorithm": algorithm}], lr=0.1, rank_fraction=0.5)
    for [G] in gradients:
        X.grad = G
        optimizer.step()
    return X, optimizer


@pytest.mark.parametrize("make", WRITTEN)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_wrapped_parameter_trains_bit_for_bit_as_a_plain_one(algorithm, make):
    [start], *gradients = normals(5, (6, 4), dtype=torch.float32)
    expected, reference = train(algorithm, start.clone(), gradients)
    X, optimizer = train(algorithm, wrapped(make, start), gradients)
    assert torch.equal(numbers(X), expected)
    assert not torch.equal(expected, start)
    for key, value in reference.state[expected].items():
        assert type(optimizer.state[X][key]) is Tensor
        assert torch.equal(optimizer.state[X][key], value)


@pytest.mark.parametrize("make", READ)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_wrapped_gradient_has_the_values_that_it_shows(algorithm, make):
    [start], *gradients = normals(3, (6, 4), dtype=torch.float32)
    expected, _ = train(algorithm, start.clone(), gradients)
    X, _ = train(algorithm, start.clone(), [[wrapped(make, G)] for [G] in gradients])
    assert torch.equal(X, expected)


def test_backward_sees_that_a_wrapped_parameter_was_written():
    X = Parameter(Showing(torch.ones(6, 4)))
    version = X._version
    X.grad = torch.ones(6, 4)
    torchdion.Dion([X]).step()
    assert X._version > version


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_keeps_its_numbers_in_another_dtype_is_read_and_written_by_copies(algorithm):
    [start], [G] = normals(2, (6, 4), dtype=torch.float32)
    start, G = start.bfloat16().float(), G.bfloat16().float()
    expected, _ = train(algorithm, start.clone(), [[G]])
    X, _ = train(algorithm, Narrowed(start.clone()), [[Narrowed(G)]])
    assert torch.equal(numbers(X), expected.bfloat16())


@pytest.mark.parametrize("make", [*REFUSED, Dropping, ReadOnly])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_parameter_that_can_not_be_written_is_refused_by_name_before_any_write(algorithm, make):
    params, optimizer = trained()
    last = Parameter(make(torch.ones(6, 4)))
    optimizer.add_param_group({"params": [last], "algorithm": algorithm})
    last.grad = torch.ones(6, 4)
    sentence = r"^torchdion.Dion: parameter 0 \(parameter group 5\) must have memory .* got a \w+$"
    assert_refused_before_any_write(params, optimizer, ValueError, sentence)
    assert last not in optimizer.state


@pytest.mark.parametrize("make", REFUSED)
def test_a_gradient_that_can_not_be_read_is_refused_by_name_before_any_write(make):
    params, optimizer = trained()
    params[-1].grad = make(torch.ones(5, 4))
    sentence = r"^torchdion.Dion: the gradient of parameter 0 \(parameter group 4\) must have memory .* got a \w+$"
    assert_refused_before_any_write(params, optimizer, ValueError, sentence)


@pytest.mark.parametrize("key", ["momentum", "Q", "step"])
@pytest.mark.parametrize("make", [Refusing, Copying, fake, twice])
def test_a_state_without_memory_is_refused_by_name(make, key):
    params, optimizer = trained()
    state = optimizer.state[params[-1]]
    plain = state[key]
    state[key] = make(plain)
    before = [param.detach().clone() for param in params]
    with pytest.raises(ValueError, match=rf"^torchdion.Dion: the state {key} of parameter 0 \(parameter group 4\)"):
        optimizer.step()
    assert all(map(torch.equal, params, before))
    state[key] = plain
    optimizer.step()


def test_a_wrapper_of_two_tensors_that_differ_is_refused_by_name():
    X = Parameter(TwoTensor(torch.ones(6, 4), torch.zeros(6, 4)))
    X.grad = torch.ones(6, 4)
    with pytest.raises(ValueError, match=r"parameter 0 .* got a TwoTensor of 2 tensors that differ$"):
        torchdion.Dion([X]).step()
    assert torch.equal(X.a, torch.ones(6, 4))


@pytest.mark.parametrize("make", WRITTEN)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_wrapped_local_tensors_of_dtensors_train_as_plain_ones(algorithm, make):
    """As torchao's float8 weights are under FSDP2; the world is one of fake collectives, where nothing is summed."""
    [start], [G] = normals(2, (6, 4), dtype=torch.float32)
    results = []
    with fake_world(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        for local in (start.clone(), wrapped(make, start)):
            X = Parameter(DTensor.from_local(local, mesh, [Shard(0)], run_check=False))
            X.grad = DTensor.from_local(G, mesh, [Shard(0)], run_check=False)
            optimizer = torchdion.Dion([{"params": [X], "algorithm": algorithm}], lr=0.1)
            optimizer.step()
            results.append(numbers(X._local_tensor).detach().clone())
            assert type(optimizer.state[X]["momentum"].to_local()) is Tensor
    assert torch.equal(*results)
    assert not torch.equal(results[0], start)


@pytest.mark.parametrize("make", WRITTEN)
def test_the_state_of_a_wrapped_parameter_is_saved_and_loaded(make):
    [start], *gradients = normals(5, (6, 4), dtype=torch.float32)
    expected, _ = train("dion", start.clone(), gradients)
    half, optimizer = train("dion", start.clone(), gradients[:2])
    X = Parameter(wrapped(make, half.detach()))
    resumed = torchdion.Dion([X], lr=0.1, rank_fraction=0.5)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for [G] in gradients[2:]:
        X.grad = G
        resumed.step()
    assert torch.equal(numbers(X), expected)


@pytest.mark.parametrize("policy", ["skip_step", "zero", "raise"])
def test_nonfinite_entries_of_a_wrapped_gradient_are_seen(policy):
    X = Parameter(Copying(torch.ones(6, 4)))
    X.grad = Copying(torch.full((6, 4), torch.inf))
    optimizer = torchdion.Dion([X], nonfinite=policy, weight_decay=0.0)
    if policy == "raise":
        with pytest.raises(ValueError, match="24 gradient entries are NaN or infinite"):
            optimizer.step()
    else:
        optimizer.step()
        assert optimizer.stats()["nonfinite_entries"] == 24
    assert torch.equal(X.inner, torch.ones(6, 4))
