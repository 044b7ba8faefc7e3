"""torch.amp.GradScaler: the step unscales inside the engine, and is left out where a gradient overflowed."""

import copy
import math

import pytest
import torch
from regression import assert_same_state_dict, parameters, trained
from runs import error, follow, normals
from torch import Tensor, nn
from torch.nn import Parameter

import torchdion

SHAPES = [(12, 8), (4, 6, 5), (7,), (8, 3, 2, 2)]


def problem(dtype: torch.dtype, steps: int = 4, **options) -> tuple[list[Parameter], torchdion.Dion, list]:
    """Every algorithm and form; gradients for some steps."""
    starts, *gradients = normals(steps + 1, *SHAPES, dtype=dtype)
    params = [Parameter(X) for X in starts]
    groups = [
        {"params": params[:1]},
        {"params": params[1:2], "batch_dims": 1, "maximize": True},
        {"params": params[2:3], "algorithm": "adamw"},
        {"params": params[3:], "algorithm": "lion"},
    ]
    return params, torchdion.Dion(groups, rank_fraction=0.5, **options), gradients


def scaled_step(optimizer, params, gradients, scale: Tensor | None, found_inf: Tensor | None) -> None:
    """What GradScaler does to an optimizer that unscales by itself."""
    for param, gradient in zip(params, gradients, strict=True):
        param.grad = gradient if scale is None else gradient * scale.item()
    optimizer.grad_scale, optimizer.found_inf = scale, found_inf
    optimizer.step()
    del optimizer.grad_scale, optimizer.found_inf


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_scaled_gradient_is_divided_by_the_scale_and_only_read(dtype, shape):
    """A power of two changes no bit."""
    params, optimizer, gradients = problem(dtype)
    expected, reference, _ = problem(dtype)
    for step in gradients:
        scaled = [G * 512 for G in step]
        scaled_step(optimizer, params, step, torch.full(shape, 512.0), torch.zeros(shape))
        assert all(torch.equal(param.grad, G) for param, G in zip(params, scaled, strict=True))
        follow(reference, expected, [step])
    assert all(map(torch.equal, params, expected))
    assert_same_state_dict(optimizer.state_dict(), reference.state_dict())


def test_any_scale_is_undone_up_to_rounding():
    params, optimizer, gradients = problem(torch.float64)
    starts = [param.detach().clone() for param in params]
    expected, reference, _ = problem(torch.float64)
    for step in gradients:
        scaled_step(optimizer, params, step, torch.tensor(1234.5), None)
    follow(reference, expected, gradients)
    for X, Y, X0 in zip(params, expected, starts, strict=True):
        assert error(X, Y.detach(), X0) <= 1e-10


@pytest.mark.parametrize("nonfinite", ["propagate", "zero", "skip_step", "raise"])
@pytest.mark.parametrize("scale", [None, 8.0])
@pytest.mark.parametrize("found_inf", [torch.ones(()), torch.full((1,), 2.0), torch.tensor(math.nan)])
def test_a_step_that_overflowed_changes_no_parameter_and_no_state(found_inf, scale, nonfinite):
    params, optimizer, gradients = problem(torch.float32, nonfinite=nonfinite)
    follow(optimizer, params, gradients[:2])
    before, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(params)
    gradients[2][0][0, 0] = math.inf
    scaled_step(optimizer, params, gradients[2], None if scale is None else torch.tensor(scale), found_inf)
    assert all(map(torch.equal, params, weights))
    assert_same_state_dict(optimizer.state_dict(), before)
    assert optimizer.stats()["skipped_steps"] == 1


def test_a_first_step_that_overflowed_counts_no_step():
    params, optimizer, gradients = problem(torch.float32)
    scaled_step(optimizer, params, gradients[0], None, torch.ones(()))
    for param in params:
        assert optimizer.state[param]["step"] == 0
        assert not optimizer.state[param]["momentum"].any()
    expected, reference, _ = problem(torch.float32)
    follow(optimizer, params, gradients)
    follow(reference, expected, gradients)
    assert all(map(torch.equal, params, expected))


@pytest.mark.parametrize("name", ["grad_scale", "found_inf"])
def test_what_is_not_one_number_is_refused_before_any_write(name):
    params, optimizer = trained(2)
    weights = copy.deepcopy(params)
    for wrong in (torch.ones(2), torch.empty(0), torch.ones((), dtype=torch.complex64)):
        setattr(optimizer, name, wrong)
        with pytest.raises(ValueError, match=rf"^torchdion.Dion: {name} must be a tensor of one real number"):
            optimizer.step()
    assert all(map(torch.equal, params, weights))


def run_with_scaler(kind: str, overflow_at: int, clip: float | None = None) -> tuple[nn.Module, float, torchdion.Dion]:
    """Six steps; `kind` says who unscales. Returns the model, the scale at the end and the optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torchdion.Dion(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=6, enabled=kind != "disabled")
    if kind == "scaler":
        optimizer._step_supports_amp_scaling = False
    inputs = torch.randn(5, 6)
    for step in range(6):
        optimizer.zero_grad()
        loss = model(inputs).square().sum() * (math.inf if step == overflow_at else 1.0)
        scaler.scale(loss).backward()
        if kind == "unscale_":
            scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
    return model, scaler.get_scale(), optimizer


@pytest.mark.parametrize("overflow_at", [-1, 0, 3])
@pytest.mark.parametrize("kind", ["engine", "unscale_"])
def test_a_gradient_scaler_gets_the_steps_that_it_would_take_by_itself(kind, overflow_at):
    """Unscaled by the engine, by the user, or by the scaler, which then leaves out step() itself: the same bits."""
    model, scale, optimizer = run_with_scaler(kind, overflow_at)
    expected, expected_scale, reference = run_with_scaler("scaler", overflow_at)
    assert scale == expected_scale == (2.0**9 if overflow_at >= 0 else 2.0**11)
    assert all(map(torch.equal, model.parameters(), expected.parameters()))
    assert_same_state_dict(optimizer.state_dict(), reference.state_dict())
    assert optimizer.stats()["skipped_steps"] == (overflow_at >= 0)
    assert not hasattr(optimizer, "grad_scale")
    assert not hasattr(optimizer, "found_inf")


def test_unscaled_gradients_can_be_clipped_before_the_step():
    """Dion does not see the scale of one gradient, but momentum sees how scales change."""
    model, _, _ = run_with_scaler("unscale_", -1, clip=0.5)
    expected, _, _ = run_with_scaler("disabled", -1, clip=0.5)
    assert all(map(torch.equal, model.parameters(), expected.parameters()))
    unclipped, _, _ = run_with_scaler("disabled", -1)
    assert not torch.equal(model[0].weight, unclipped[0].weight)


def test_pure_half_precision_parameters_train_with_a_scaler():
    """These gradients would vanish if they were unscaled in FP16; a state in FP32 holds them."""
    X = Parameter(torch.ones(6, 4, dtype=torch.float16))
    config = torchdion.DionMixedPrecisionConfig(momentum_dtype=torch.float32, Q_dtype=torch.float32)
    optimizer = torchdion.Dion([X], lr=0.25, weight_decay=0.0, mixed_precision_config=config)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaler.scale((X.float() * 2.0**-30).sum()).backward()
    assert X.grad.unique().tolist() == [2.0**-14]
    assert not (X.grad * 2.0**-16).any()
    scaler.step(optimizer)
    assert optimizer.state[X]["momentum"].mean().item() == pytest.approx(0.95 * 2.0**-30, rel=1e-5)
    # Gradients of rank one move the weights by η sqrt(m/n) / sqrt(m n) each.
    assert (1 - X).mean().item() == pytest.approx(0.25 * (6 / 4) ** 0.5 / 24**0.5, rel=2e-3)


def test_a_scaler_without_any_gradient_takes_no_step():
    params = parameters()
    optimizer = torchdion.Dion(params)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros((), requires_grad=True)).backward()
    scaler.step(optimizer)
    assert all(map(torch.equal, params, parameters()))


def test_a_closure_with_a_scaler_is_refused_by_torch():
    _, optimizer = trained(1)
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        torch.amp.GradScaler("cpu").step(optimizer, closure=lambda: 0.0)
