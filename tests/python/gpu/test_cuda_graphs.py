"""On a GPU: capturable steps, which the host does not wait for, and which CUDA graphs replay."""

from typing import Any

import pytest
import torch
from on_gpu import SHAPES, distance, give_gradients, needs_gpu, normal, sync_is_an_error, trained
from pages import block_with
from torch import Tensor, nn

import torchdion

pytestmark = needs_gpu


@pytest.mark.parametrize("nonfinite", ["propagate", "zero", "skip_step"])
def test_the_host_does_not_wait_for_a_capturable_step(nonfinite: str) -> None:
    lr = torch.tensor(0.05, device="cuda")
    weights, optimizer = trained("cuda", torch.float32, 2, lr=lr, nonfinite=nonfinite, capturable=True)
    before = {name: weight.clone() for name, weight in weights.items()}
    if nonfinite != "propagate":
        optimizer.param_groups[0]["params"][0].grad[3, 4].fill_(float("nan"))
    with sync_is_an_error():
        optimizer.step()
    stats = optimizer.stats()
    assert stats["nonfinite_entries"] == (nonfinite != "propagate")
    assert stats["skipped_steps"] == (nonfinite == "skip_step")
    assert all(torch.equal(weight, before[name]) == (nonfinite == "skip_step") for name, weight in weights.items())


def captured_step(optimizer: torchdion.Dion) -> torch.cuda.CUDAGraph:
    """After one step on a side stream, as torch's documentation of CUDA graphs has it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    return graph


@pytest.mark.parametrize("orthonormalize", ["auto", "rcqr"])
@pytest.mark.parametrize("options", [{}, {"nonfinite": "zero"}, {"nonfinite": "skip_step"}], ids=str)
def test_a_graph_replays_steps_with_the_rates_of_the_moment(options: dict[str, Any], orthonormalize: str) -> None:
    options = options | {"orthonormalize": orthonormalize, "precision": "highest"}
    expected, reference = trained("cuda", torch.float64, 0, **options)
    rates = {name: torch.tensor(value, device="cuda") for name, value in (("lr", 0.05), ("weight_decay", 0.01))}
    found, optimizer = trained("cuda", torch.float64, 0, **rates, **options, capturable=True)
    start = {name: weight.clone() for name, weight in found.items()}
    for each in (optimizer, reference):
        give_gradients(each, 0)
    graph = captured_step(optimizer)
    reference.step()
    for step in range(1, 6):
        for each in (optimizer, reference):
            give_gradients(each, step)
        rates["lr"].fill_(0.05 / step)
        rates["weight_decay"].fill_(0.01 * step)
        graph.replay()
        for group in reference.param_groups:
            group |= {"lr": 0.05 / step, "weight_decay": 0.01 * step}
        reference.step()
    for name, weight in found.items():
        assert distance(weight - start[name], expected[name] - start[name]) <= 1e-6, name  # rates are FP32
        assert not torch.equal(weight, start[name])
    assert all(float(state["step"]) == 6 for state in optimizer.state.values())


@pytest.mark.parametrize("residual", ["scaled", "sign"])
@pytest.mark.parametrize("precision", ["high", "medium"])
def test_a_graph_moves_weights_by_what_the_rank_leaves(precision: str, residual: str) -> None:
    """FP32 weights, in one pass; other bits of a product turn few signs."""
    options: dict[str, Any] = {"residual": residual, "precision": precision, "rank_fraction": 0.25}
    options |= {"rank_multiple_of": 8, "lr": 0.05}
    start = normal(3, 130, 96, dtype=torch.float32)
    weights = [nn.Parameter(start.cuda()) for _ in range(2)]
    found, reference = (
        torchdion.Dion([{"params": [weight], "batch_dims": 1}], capturable=capturable, **options)
        for weight, capturable in zip(weights, (True, False), strict=True)
    )
    gradients = [normal(3, 130, 96, seed=i, dtype=torch.float32).cuda() for i in range(1, 5)]
    for weight in weights:
        weight.grad = gradients[0].clone()
    graph = captured_step(found)
    reference.step()
    for gradient in gradients[1:]:
        for weight in weights:
            weight.grad.copy_(gradient)
        graph.replay()
        reference.step()
    travelled = [weight.detach().cpu() - start for weight in weights]
    assert distance(*travelled) <= 0.1


def written(optimizer: torchdion.Dion) -> list[Tensor]:
    """All that a step writes."""
    tensors = []
    for group in optimizer.param_groups:
        [param] = group["params"]
        tensors += [param.detach(), *optimizer.state[param].values()]
    return tensors


def test_a_graph_leaves_out_the_steps_whose_gradients_are_not_finite() -> None:
    _, optimizer = trained("cuda", torch.float32, 0, nonfinite="skip_step", capturable=True)
    give_gradients(optimizer, 0)
    graph = captured_step(optimizer)
    before = [tensor.clone() for tensor in written(optimizer)]
    optimizer.param_groups[1]["params"][0].grad[0, 0] = float("inf")
    graph.replay()
    assert all(map(torch.equal, written(optimizer), before))
    give_gradients(optimizer, 1)
    graph.replay()
    assert not any(map(torch.equal, written(optimizer), before))


def test_a_graph_counts_the_entries_of_the_moment_as_zero() -> None:
    options = {"nonfinite": "zero", "precision": "highest"}
    found, optimizer = trained("cuda", torch.float64, 0, capturable=True, **options)
    expected, reference = trained("cuda", torch.float64, 0, **options)
    give_gradients(optimizer, 0)
    give_gradients(reference, 0)
    graph = captured_step(optimizer)
    reference.step()
    for each in (optimizer, reference):
        give_gradients(each, 1)
        each.param_groups[0]["params"][0].grad[3, 4] = float("nan")
    graph.replay()
    reference.step()
    for name, weight in found.items():
        assert weight.isfinite().all()
        assert distance(weight, expected[name]) <= 1e-12, name


def test_a_scaler_is_captured_with_its_step() -> None:
    scaler = torch.amp.GradScaler("cuda", init_scale=64.0, growth_interval=1)
    _, optimizer = trained("cuda", torch.float32, 0, capturable=True)
    weights = [group["params"][0] for group in optimizer.param_groups]
    factor = torch.ones((), device="cuda")

    def train() -> None:
        for weight in weights:
            weight.grad = None
        scaler.scale(sum((weight.sin() * factor).sum() for weight in weights)).backward()
        scaler.step(optimizer)
        scaler.update()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        train()
        with sync_is_an_error():
            train()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train()
    for overflows in (False, True, False):
        scale, before = scaler.get_scale(), [tensor.clone() for tensor in written(optimizer)]
        factor.fill_(float("inf") if overflows else 1.0)
        graph.replay()
        assert scaler.get_scale() == (scale / 2 if overflows else scale * 2)
        assert all(map(torch.equal, written(optimizer), before)) == overflows
        assert any(map(torch.equal, written(optimizer), before)) == overflows


def test_a_first_step_and_a_step_that_is_not_capturable_are_not_captured() -> None:
    for steps, options, message in ((0, {"capturable": True}, "first step"), (1, {}, "needs capturable=True")):
        _, optimizer = trained("cuda", torch.float32, steps, **options)
        give_gradients(optimizer, 0)
        with pytest.raises((RuntimeError, ValueError), match=message), torch.cuda.graph(torch.cuda.CUDAGraph()):
            optimizer.step()
        assert len(optimizer.state) == steps * len(SHAPES)
        optimizer.step()  # nothing is broken
        assert len(optimizer.state_dict()["state"]) == len(SHAPES)


def test_the_parameters_of_a_compiled_model_train() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    optimizer = torchdion.Dion(model.parameters(), lr=torch.tensor(0.05, device="cuda"), capturable=True)
    inputs, targets = torch.randn(64, 16, device="cuda"), torch.randn(64, 4, device="cuda")
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (compiled(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]


def test_the_page_on_cuda_runs() -> None:
    block = block_with("cuda-graphs", "torch.cuda.graph")
    exec(compile(block, "docs/guides/cuda-graphs.md", "exec"), {"__name__": "page"})
