"""Parameters and gradients of every kind that AdamW takes."""

import pytest
import torch
from regression import assert_same_state_dict, closure, parameters, trained
from runs import follow, normals
from torch import Tensor, nn
from torch.nn import Parameter

import torchdion
from torchdion.table import ALGORITHMS


def negated(tensor: Tensor) -> Tensor:
    """The same numbers as a view with a pending negation, as the imaginary part of a conjugate is."""
    return torch.complex(torch.zeros_like(tensor), -tensor).conj().imag


@pytest.mark.parametrize("form", [{}, {"batch_dims": 1}])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("layout", ["imaginary part", "contiguous"])
def test_a_gradient_or_parameter_with_a_pending_negation_has_the_sign_that_it_shows(algorithm, layout, form):
    starts, *gradients = normals(3, (4, 6, 5), dtype=torch.float32)
    view = negated if layout == "imaginary part" else (lambda tensor: torch._neg_view(-tensor))
    group = {"algorithm": algorithm, "batch_dims": 0, **form}
    expected = Parameter(starts[0].clone())
    reference = torchdion.Dion([{"params": [expected], **group}])
    follow(reference, [expected], gradients)
    for start, change in ((starts[0], view), (view(starts[0]), torch.clone), (view(starts[0]), view)):
        X = Parameter(start.clone() if not start.is_neg() else start)
        optimizer = torchdion.Dion([{"params": [X], **group}])
        for [G] in gradients:
            X.grad = change(G)
            assert X.grad.is_neg() == (change is view)
            optimizer.step()
        assert torch.equal(X, expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_gradient_of_zeros_without_memory_is_zero(algorithm):
    X = Parameter(torch.ones(6, 4))
    X.grad = torch._efficientzerotensor((6, 4))
    optimizer = torchdion.Dion([{"params": [X], "algorithm": algorithm}], lr=0.5, weight_decay=0.5)
    optimizer.step()
    assert torch.equal(X, torch.full((6, 4), 0.75))


def test_a_lazy_module_may_be_given_to_the_optimizer_before_its_first_input():
    def train(model: nn.Module, first: bool) -> tuple[nn.Module, torchdion.Dion]:
        optimizer = torchdion.Dion(model.parameters(), rank_fraction=0.5) if first else None
        torch.manual_seed(3)
        model(torch.ones(2, 3, 8, 8))
        optimizer = optimizer or torchdion.Dion(model.parameters(), rank_fraction=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 3, 8, 8)).square().sum().backward()
            optimizer.step()
        return model, optimizer

    def network() -> nn.Module:
        return nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(5))

    model, optimizer = train(network(), True)
    expected, reference = train(network(), False)
    assert all(map(torch.equal, model.parameters(), expected.parameters()))
    assert_same_state_dict(optimizer.state_dict(), reference.state_dict())
    lazy = nn.LazyLinear(6)
    optimizer = torchdion.Dion([{"params": lazy.parameters(), "blocks": 4}])
    assert optimizer.stats()["parameters"] == {}
    lazy(torch.ones(2, 3)).sum().backward()
    with pytest.raises(ValueError, match=r"^torchdion.Dion: blocks must divide the 6 rows of parameter 0 .*, got 4$"):
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_model_may_change_its_dtype_between_steps(dtype):
    """model.double() keeps the parameter objects; the states keep their dtype until they are loaded again."""
    params, optimizer = trained(2)
    for param in params:
        param.grad, param.data = None, param.data.to(dtype)
    before = [param.detach().clone() for param in params]
    optimizer.step(closure(optimizer, params))
    for param, old in zip(params, before, strict=True):
        assert param.dtype == dtype
        assert not torch.equal(param, old)
        assert param.isfinite().all()
        assert optimizer.state[param]["momentum"].dtype == torch.float32
        assert optimizer.state[param]["step"] == 3
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.state[params[0]]["momentum"].dtype == dtype


def test_steps_inside_and_outside_of_inference_mode_are_the_same():
    expected, _ = trained(4)
    params = parameters()
    optimizer = torchdion.Dion(params)
    for inside in (True, False, True, False):
        closure(optimizer, params)()
        with torch.inference_mode(inside):
            optimizer.step()
    assert all(map(torch.equal, params, expected))


def test_inference_tensors_are_updated_as_adamw_updates_them():
    starts, *gradients = normals(2, (6, 4), (5,), dtype=torch.float32)
    with torch.inference_mode():
        tensors = [X.clone() for X in starts]
        optimizer = torchdion.Dion(tensors)
        for step in gradients:
            for tensor, G in zip(tensors, step, strict=True):
                tensor.grad = G.clone()
            optimizer.step()
    expected = [Parameter(X.clone()) for X in starts]
    follow(torchdion.Dion(expected), expected, gradients)
    assert all(map(torch.equal, tensors, expected))


def test_gradients_of_torch_func_train_the_parameters_that_they_are_assigned_to():
    model, twin = nn.Linear(6, 4), nn.Linear(6, 4)
    twin.load_state_dict(model.state_dict())
    inputs = torch.randn(5, 6)
    optimizer, reference = torchdion.Dion(model.parameters()), torchdion.Dion(twin.parameters())

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, weights, (inputs,)).square().sum()

    for _ in range(3):
        gradients = torch.func.grad(loss)({name: param.detach() for name, param in model.named_parameters()})
        for name, param in model.named_parameters():
            param.grad = gradients[name]
        optimizer.step()
        reference.zero_grad()
        twin(inputs).square().sum().backward()
        reference.step()
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


def test_plain_tensors_and_parameters_of_one_number_train():
    tensors = [torch.randn(4, 3), torch.randn(3), torch.randn(()), torch.randn(1, 1)]
    before = [tensor.clone() for tensor in tensors]
    for tensor in tensors:
        tensor.grad = torch.ones_like(tensor)
    torchdion.Dion(tensors, weight_decay=0.0, lr=0.25).step()
    for tensor, old in zip(tensors, before, strict=True):
        assert (tensor < old).all()
    assert torch.allclose(before[3] - tensors[3], torch.tensor(0.25))
    assert torch.allclose(before[2] - tensors[2], torch.tensor(0.25))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lazy_copies_train_as_what_they_are_copies_of(algorithm):
    start, G = torch.ones(6, 4), torch.linspace(-1, 1, 24).view(6, 4)
    results = []
    for copy in (torch.clone, torch._lazy_clone):
        X = Parameter(copy(start))
        X.grad = copy(G)
        torchdion.Dion([{"params": [X], "algorithm": algorithm}]).step()
        results.append(X.detach())
    assert torch.equal(*results)
    assert torch.equal(start, torch.ones(6, 4))
