"""What training loops do around step(): accumulate, freeze, clip, zero, evaluate closures, and run in threads."""

import threading

import pytest
import torch
from regression import CONFIGURATIONS, assert_same_state_dict, closure, options, parameters, trained
from runs import error, follow, normals
from torch import Tensor, nn
from torch.nn import Parameter

import torchdion
from torchdion.table import ALGORITHMS


def network(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs).square().sum()


def test_accumulated_gradients_are_those_of_the_whole_batch():
    inputs = torch.randn(12, 6, dtype=torch.float64)
    accumulated, whole = network(dtype=torch.float64), network(dtype=torch.float64)
    starts = [X.detach().clone() for X in whole.parameters()]
    optimizer, reference = (torchdion.Dion(model.parameters(), lr=0.05) for model in (accumulated, whole))
    for _ in range(3):
        optimizer.zero_grad()
        for part in inputs.chunk(4):
            loss_of(accumulated, part).backward()
        optimizer.step()
        reference.zero_grad()
        loss_of(whole, inputs).backward()
        reference.step()
    for X, Y, X0 in zip(accumulated.parameters(), whole.parameters(), starts, strict=True):
        assert error(X.detach(), Y.detach(), X0) <= 1e-9


def test_a_frozen_layer_stands_still_and_goes_on_where_it_stopped():
    """Its weights, momentum and step count pause, and a step where nothing has a gradient changes nothing."""
    model, inputs = network(), torch.randn(5, 6)
    optimizer = torchdion.Dion(model.parameters(), lr=0.05)
    moved, layer = [], model[2]
    for step in range(7):
        optimizer.zero_grad()
        layer.requires_grad_(step not in (3, 4))
        if step != 2:
            loss_of(model, inputs).backward()
        before = [layer.weight.detach().clone(), model[0].weight.detach().clone()]
        optimizer.step()
        pairs = zip(before, (layer.weight, model[0].weight), strict=True)
        moved.append(tuple(not torch.equal(old, new) for old, new in pairs))
    assert moved == [(True, True)] * 2 + [(False, False)] + [(False, True)] * 2 + [(True, True)] * 2
    assert optimizer.state[layer.weight]["step"] == optimizer.state[layer.bias]["step"] == 4
    assert optimizer.state[model[0].weight]["step"] == 6


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_step_without_any_gradient_makes_no_state_and_returns_the_loss(name):
    params = [torch.randn(2, 3), torch.randn(2)]
    start = [param.clone() for param in params]
    optimizer = torchdion.Dion(params, **options(name))
    assert optimizer.step(lambda: torch.tensor([1.0])) == 1
    assert optimizer.step() is None
    assert all(map(torch.equal, params, start))
    assert not optimizer.state


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_zero_gradients_without_decay_change_no_weight(name):
    params = parameters()
    optimizer = torchdion.Dion(params, **options(name) | {"weight_decay": 0.0})
    for _ in range(2):
        for param in params:
            param.grad = torch.zeros_like(param)
        optimizer.step()
    assert all(map(torch.equal, params, parameters()))
    assert all(optimizer.state[param]["step"] == 2 for param in params)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_gradients_set_to_zero_stay_where_they_lie_and_decay_goes_on(algorithm):
    X = Parameter(torch.ones(6, 4))
    optimizer = torchdion.Dion([{"params": [X], "algorithm": algorithm}], weight_decay=0.5, lr=0.5)
    X.grad = torch.ones(6, 4)
    memory = X.grad.data_ptr()
    optimizer.zero_grad(set_to_none=False)
    assert X.grad.data_ptr() == memory
    assert not X.grad.any()
    optimizer.step()
    assert torch.equal(X, torch.full((6, 4), 0.75))


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
def test_clipped_gradients_are_what_the_step_takes(clip):
    starts, *gradients = normals(6, (6, 4), (5,))
    params, expected = ([Parameter(X.clone()) for X in starts] for _ in range(2))
    optimizer, reference = torchdion.Dion(params), torchdion.Dion(expected)
    for step in gradients:
        for param, G in zip(params, step, strict=True):
            param.grad = G.clone()
        clip(params, 0.5)
        clipped = [param.grad.clone() for param in params]
        assert not any(map(torch.equal, clipped, step))
        optimizer.step()
        follow(reference, expected, [clipped])
    assert all(map(torch.equal, params, expected))
    unclipped = [Parameter(X.clone()) for X in starts]
    follow(torchdion.Dion(unclipped), unclipped, gradients)
    assert not torch.equal(params[0], unclipped[0])


@pytest.mark.parametrize("loss", [3.0, torch.tensor(3.0), None])
def test_whatever_a_closure_returns_is_returned(loss):
    _, optimizer = trained(1)
    assert optimizer.step(lambda: loss) is loss
    assert optimizer.step(closure=lambda: loss) is loss


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_a_group_has_its_own_weight_decay(decay):
    params = parameters()
    groups = [{"params": params[:1], "weight_decay": 0.1}, {"params": params[1:], "weight_decay": decay}]
    optimizer = torchdion.Dion(groups, lr=0.5)
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer.step()
    for param, start, own in zip(params, parameters(), (0.1, decay), strict=True):
        assert torch.allclose(param, (1 - 0.5 * own) * start, rtol=1e-6, atol=0)


def test_a_group_of_a_vanishing_rate_stands_still_beside_one_that_learns():
    params, still = parameters(), Parameter(torch.randn(4, 3))
    start = still.detach().clone()
    optimizer = torchdion.Dion([{"params": params, "lr": 0.01}, {"params": [still]}], lr=1e-28)
    evaluate = closure(optimizer, params)
    first = evaluate().item()
    for _ in range(20):
        evaluate()
        still.grad = torch.rand_like(still)
        optimizer.step()
    assert evaluate().item() < 0.9 * first
    assert torch.equal(still, start)


def test_a_group_stays_the_dict_that_it_was_given_as():
    """As with torch, which fills in the defaults; one that is refused keeps what it had."""
    group = {"params": [Parameter(torch.ones(3, 3))]}
    optimizer = torchdion.Dion([group], lr=0.5)
    assert optimizer.param_groups[0] is group
    assert group["lr"] == 0.5
    refused = {"params": [("name", Parameter(torch.ones(3, 3)))], "beta1": 0.5}
    given = dict(refused)
    with pytest.raises(ValueError, match="should be with/without names"):
        optimizer.add_param_group(refused)
    assert refused == given


def test_a_backward_pass_through_weights_that_a_step_has_changed_is_refused_by_torch():
    X = Parameter(torch.eye(3))
    loss = (X**3).sum()
    loss.backward(retain_graph=True)
    torchdion.Dion([X]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_that_have_a_graph_of_their_own_are_taken():
    params, expected = parameters(), parameters()
    for each, create_graph in ((params, True), (expected, False)):
        for param, gradient in zip(
            each, torch.autograd.grad((each[0] ** 3).sum() + (each[1] ** 3).sum(), each, create_graph=create_graph),
            strict=True,
        ):  # fmt: skip
            param.grad = gradient
        torchdion.Dion(each).step()
    assert params[0].grad.requires_grad
    assert all(map(torch.equal, params, expected))


def test_several_threads_train_as_if_each_were_alone():
    def train(seed: int) -> list[Tensor]:
        inputs, model = torch.linspace(-1, 1, 30).view(5, 6), network_of[seed]
        optimizer = torchdion.Dion(model.parameters(), lr=0.05, scalar_algorithm="adamw")
        for _ in range(20):
            optimizer.zero_grad()
            loss_of(model, inputs).backward()
            optimizer.step()
        return [param.detach() for param in model.parameters()]

    network_of = {seed: network(seed) for seed in range(4)}
    expected = {seed: [X.clone() for X in train(seed)] for seed in network_of}
    network_of = {seed: network(seed) for seed in range(4)}
    results: dict[int, list[Tensor]] = {}
    threads = [threading.Thread(target=lambda s=seed: results.update({s: train(s)})) for seed in network_of]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, weights in expected.items():
        assert all(map(torch.equal, results[seed], weights))


@pytest.mark.parametrize("default", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_default_dtype_changes_nothing(name, default):
    expected, reference = trained(3, **options(name))
    params = parameters()
    optimizer = torchdion.Dion(params, **options(name))
    for _ in range(3):
        closure(optimizer, params)()
        torch.set_default_dtype(default)
        try:
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
        finally:
            torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, params, expected))
    assert_same_state_dict(optimizer.state_dict(), reference.state_dict())


def test_the_default_device_changes_nothing():
    expected, reference = trained(3)
    params = parameters()
    optimizer = torchdion.Dion(params)
    for _ in range(3):
        closure(optimizer, params)()
        with torch.device("meta"):
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
    assert all(map(torch.equal, params, expected))
    assert_same_state_dict(optimizer.state_dict(), reference.state_dict())


@pytest.mark.parametrize("name", [*CONFIGURATIONS, "capturable"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_step_writes_into_a_gradient(algorithm, name):
    """Neither its numbers nor its version change, as with torch's optimizers: a graph may have saved it."""
    params = [*parameters(), *parameters(contiguous=False), Parameter(torch.randn(6, 4).bfloat16())]
    given = {"capturable": True} if name == "capturable" else options(name)
    optimizer = torchdion.Dion([{"params": params, "algorithm": algorithm}], **given)
    gradients = [torch.randn_like(param) for param in params]
    if name == "zero":
        gradients[0][3, 2] = torch.nan
    kept, versions = [G.clone() for G in gradients], [G._version for G in gradients]
    for param, G in zip(params, gradients, strict=True):
        param.grad = G
    for _ in range(3):
        optimizer.step()
    torch.testing.assert_close(gradients, kept, rtol=0, atol=0, equal_nan=True)
    assert [G._version for G in gradients] == versions
    assert all(param.grad is G for param, G in zip(params, gradients, strict=True))
