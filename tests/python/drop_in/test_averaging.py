"""Averages of the weights: torch.optim.swa_utils around this optimizer."""

import copy

import pytest
import torch
from regression import closure, parameters
from torch import nn
from torch.optim import swa_utils

import torchdion


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", ["SWA", "EMA"])
def test_an_averaged_model_holds_the_average_of_the_weights_of_each_step(kind):
    model, inputs = network(), torch.randn(16, 6)
    optimizer = torchdion.Dion(model.parameters(), lr=0.05)
    average = swa_utils.get_ema_multi_avg_fn(0.75) if kind == "EMA" else None
    averaged = swa_utils.AveragedModel(model, multi_avg_fn=average)
    weights = []
    for _ in range(5):
        train(model, optimizer, inputs)
        averaged.update_parameters(model)
        weights.append(model[0].weight.detach().double().clone())
    expected = weights[0]
    for W in weights[1:]:
        expected = 0.75 * expected + 0.25 * W
    expected = torch.stack(weights).mean(0) if kind == "SWA" else expected
    assert torch.linalg.vector_norm(averaged.module[0].weight - expected) <= 1e-6
    assert torch.linalg.vector_norm(averaged.module[0].weight - weights[-1]) > 0.01, "not just the last"
    swa_utils.update_bn([inputs], averaged)
    assert torch.allclose(averaged.module[1].running_mean, averaged.module[0](inputs).mean(0), atol=1e-5)


def test_swalr_anneals_every_group_to_its_rate_as_it_does_for_adamw():
    rates = []
    for cls in (torchdion.Dion, torch.optim.AdamW):
        params = parameters()
        optimizer = cls([{"params": params[:1], "lr": 0.1}, {"params": params[1:]}], lr=0.02)
        scheduler = swa_utils.SWALR(optimizer, swa_lr=[0.05, 0.01], anneal_epochs=4)
        rates.append([])
        for _ in range(6):
            optimizer.step(closure(optimizer, params))
            scheduler.step()
            rates[-1].append([group["lr"] for group in optimizer.param_groups])
    assert rates[0] == rates[1]
    assert rates[0][-1] == pytest.approx([0.05, 0.01])


def test_training_goes_on_from_averaged_weights_copied_back():
    """In place, as load_state_dict writes: the states stay those of the same parameters."""
    model, inputs = network(), torch.randn(16, 6)
    optimizer = torchdion.Dion(model.parameters(), lr=0.05)
    averaged = swa_utils.AveragedModel(model)
    for _ in range(3):
        train(model, optimizer, inputs)
        averaged.update_parameters(model)
    momentum = optimizer.state[model[0].weight]["momentum"].clone()
    model.load_state_dict(copy.deepcopy(averaged.module.state_dict()))
    assert torch.equal(optimizer.state[model[0].weight]["momentum"], momentum)
    before = copy.deepcopy(model)
    train(model, optimizer, inputs)
    assert optimizer.state[model[0].weight]["step"] == 4
    assert not torch.equal(model[0].weight, before[0].weight)
