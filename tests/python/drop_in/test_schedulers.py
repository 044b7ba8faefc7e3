"""Every scheduler of torch.optim.lr_scheduler drives this optimizer as it drives AdamW."""

import inspect

import oracle
import pytest
import torch
from regression import CONFIGURATIONS, closure, options, parameters
from runs import normals
from torch.nn import Parameter
from torch.optim import lr_scheduler as s

import torchdion

SCHEDULERS = {
    "LambdaLR": lambda o: s.LambdaLR(o, lambda step: 1 / (1 + step)),
    "MultiplicativeLR": lambda o: s.MultiplicativeLR(o, lambda step: 0.9),
    "StepLR": lambda o: s.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: s.MultiStepLR(o, [2, 5], 0.5),
    "ConstantLR": lambda o: s.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: s.LinearLR(o, 0.1, total_iters=6),
    "ExponentialLR": lambda o: s.ExponentialLR(o, 0.9),
    "SequentialLR": lambda o: s.SequentialLR(o, [s.LinearLR(o, 0.2), s.ExponentialLR(o, 0.9)], [3]),
    "PolynomialLR": lambda o: s.PolynomialLR(o, 9, 2.0),
    "CosineAnnealingLR": lambda o: s.CosineAnnealingLR(o, 8),
    "ChainedScheduler": lambda o: s.ChainedScheduler([s.ConstantLR(o, 0.5, 4), s.ExponentialLR(o, 0.9)]),
    "ReduceLROnPlateau": lambda o: s.ReduceLROnPlateau(o, patience=1, factor=0.5),
    "CyclicLR": lambda o: s.CyclicLR(o, 0.001, 0.1, step_size_up=3),
    "CosineAnnealingWarmRestarts": lambda o: s.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: s.OneCycleLR(o, 0.05, total_steps=10),
}
RATES = {
    "float": lambda: 0.02,
    "0-d tensor": lambda: torch.tensor(0.02, dtype=torch.float64),
    "one element": lambda: torch.tensor([0.02], dtype=torch.float64),
}


def advance(scheduler: s.LRScheduler) -> None:
    if isinstance(scheduler, s.ReduceLROnPlateau):
        scheduler.step(1.0)
    else:
        scheduler.step()


def test_no_scheduler_of_torch_is_left_out():
    classes = inspect.getmembers(s, inspect.isclass)
    found = {name for name, cls in classes if issubclass(cls, s.LRScheduler) and not name.startswith("_")}
    assert found - {"LRScheduler"} == set(SCHEDULERS)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_sets_the_rates_that_it_sets_for_adamw_and_each_step_follows_them(name, rate):
    """The update of rank r has norm η sqrt(m/n) sqrt(r); the cycled momentum is betas[0]."""
    starts, *gradients = normals(8, (6, 4), (6, 4))
    rates, twins = [], [Parameter(X.clone()) for X in starts]
    params = [Parameter(X.clone()) for X in starts]
    groups = [[{"params": [X]}, {"params": [Y], "lr": 0.005}] for X, Y in (params, twins)]
    optimizer = torchdion.Dion(groups[0], lr=RATES[rate](), weight_decay=0.0)
    reference = torch.optim.AdamW(groups[1], lr=RATES[rate](), betas=(0.95, 0.98))
    schedulers = [SCHEDULERS[name](optimizer), SCHEDULERS[name](reference)]
    for step in gradients:
        for group, expected in zip(optimizer.param_groups, reference.param_groups, strict=True):
            assert float(group["lr"]) == float(expected["lr"])
            assert group["betas"] == expected["betas"]
        rates.append(float(optimizer.param_groups[0]["lr"]))
        before = [X.detach().clone() for X in params]
        for X, twin, G in zip(params, twins, step, strict=True):
            X.grad, twin.grad = G.clone(), G.clone()
        optimizer.step()
        reference.step()
        for X, old, group in zip(params, before, optimizer.param_groups, strict=True):
            moved = torch.linalg.vector_norm(X.detach() - old).item()
            assert moved == pytest.approx(float(group["lr"]) * 6**0.5, rel=1e-12)
        for scheduler in schedulers:
            advance(scheduler)
    assert len(set(rates)) > 1
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor) == (rate != "float")


@pytest.mark.parametrize("name", ["CyclicLR", "OneCycleLR"])
def test_a_cycled_momentum_is_the_beta1_of_the_scalar_algorithm_and_leaves_mu_alone(name):
    [x], *gradients = normals(8, (7,))
    b = Parameter(x.clone())
    optimizer = torchdion.Dion([b], mu=0.9, weight_decay=0.1)
    scheduler = SCHEDULERS[name](optimizer)
    m, seen = torch.zeros(7, dtype=torch.float64), set()
    for [g] in gradients:
        [group] = optimizer.param_groups
        x, m = oracle.lion(x, m, g, group["lr"], *group["betas"], 0.1)
        b.grad = g
        optimizer.step()
        assert torch.linalg.vector_norm(b - x) <= 1e-12
        assert group["mu"] == 0.9
        seen.add(group["betas"][0])
        scheduler.step()
    assert len(seen) >= 4


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_run_resumed_with_its_scheduler_equals_the_uninterrupted_one(name):
    starts, *gradients = normals(8, (6, 4), (5,), dtype=torch.float32)

    def continued(optimizer, scheduler, params, steps):
        for step in steps:
            for X, G in zip(params, step, strict=True):
                X.grad = G.clone()
            optimizer.step()
            advance(scheduler)

    params = [Parameter(X.clone()) for X in starts]
    optimizer = torchdion.Dion(params)
    scheduler = SCHEDULERS[name](optimizer)
    continued(optimizer, scheduler, params, gradients[:4])
    resumed = [Parameter(X.detach().clone()) for X in params]
    another = torchdion.Dion(resumed)
    another_scheduler = SCHEDULERS[name](another)
    another_scheduler.load_state_dict(scheduler.state_dict())
    another.load_state_dict(optimizer.state_dict())
    continued(optimizer, scheduler, params, gradients[4:])
    continued(another, another_scheduler, resumed, gradients[4:])
    assert all(map(torch.equal, params, resumed))


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_twenty_steps_move_the_loss_in_the_right_direction(name, contiguous, scheduled):
    params = parameters(contiguous)
    optimizer = torchdion.Dion(params, **options(name))
    schedulers = [s.ExponentialLR(optimizer, 0.99), s.ReduceLROnPlateau(optimizer)] if scheduled else []
    evaluate = closure(optimizer, params)
    first = evaluate().item()
    for _ in range(20):
        loss = optimizer.step(evaluate)
        for scheduler in schedulers:
            scheduler.step(*[loss.item()] * isinstance(scheduler, s.ReduceLROnPlateau))
    last = evaluate().item()
    assert last > 1.1 * first if optimizer.param_groups[0]["maximize"] else last < 0.9 * first


@pytest.mark.parametrize("second", [0.02, "tensor"])
def test_groups_with_their_own_rates_follow_one_scheduler_in_the_right_direction(second):
    params = parameters()
    rate = torch.tensor(0.02) if second == "tensor" else second
    optimizer = torchdion.Dion([{"params": params[:1]}, {"params": params[1:], "lr": rate}])
    scheduler = s.CosineAnnealingLR(optimizer, 20)
    evaluate = closure(optimizer, params)
    first = evaluate().item()
    for _ in range(20):
        optimizer.step(evaluate)
        scheduler.step()
    assert evaluate().item() < 0.9 * first
    assert [float(group["lr"]) for group in optimizer.param_groups] == [pytest.approx(0, abs=1e-9)] * 2


@pytest.mark.parametrize("rate", [0.07, torch.tensor(0.07), torch.tensor([0.07])])
def test_a_rate_written_into_a_group_holds_from_the_next_step(rate):
    X = Parameter(torch.zeros(6, 4, dtype=torch.float64))
    optimizer = torchdion.Dion([X], weight_decay=0.0)
    for expected in (0.01, float(rate)):
        before = X.detach().clone()
        X.grad = torch.randn(6, 4, dtype=torch.float64)
        optimizer.step()
        assert torch.linalg.vector_norm(X.detach() - before).item() == pytest.approx(expected * 6**0.5, rel=1e-12)
        optimizer.param_groups[0]["lr"] = rate
