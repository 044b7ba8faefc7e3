"""torch.compile around the model, around step() and around the whole training step."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import torchdion

BACKEND = "aot_eager"  # traces everything and needs no compiler


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def trained(what: str) -> tuple[nn.Module, torchdion.Dion]:
    model, inputs = network(), torch.linspace(-1, 1, 30).view(5, 6)
    optimizer = torchdion.Dion(model.parameters(), lr=0.05, rank_fraction=0.5)
    forward = torch.compile(model, backend=BACKEND) if what == "model" else model

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = forward(inputs).square().sum()
        loss.backward()
        return loss

    def step() -> None:
        optimizer.step(closure if what == "closure" else None)

    def whole() -> torch.Tensor:
        loss = closure() if what != "closure" else None
        update()
        return loss

    update = torch.compile(step, backend=BACKEND) if what in ("step", "closure") else step
    run = torch.compile(whole, backend=BACKEND) if what == "whole" else whole
    for _ in range(4):
        run()
    return model, optimizer


@pytest.mark.parametrize("what", ["model", "step", "closure", "whole"])
def test_what_is_compiled_trains_to_the_same_bits(what):
    model, optimizer = trained(what)
    expected, reference = trained("nothing")
    assert all(map(torch.equal, model.parameters(), expected.parameters()))
    assert optimizer.stats() == reference.stats()
    for param, twin in zip(model.parameters(), expected.parameters(), strict=True):
        for key, value in reference.state[twin].items():
            assert torch.equal(optimizer.state[param][key], value)


def test_step_inside_a_compiled_function_is_one_graph_break():
    """What stands before and after it is compiled: two graphs, once."""
    model = network()
    optimizer, counter = torchdion.Dion(model.parameters()), CompileCounter()

    @torch.compile(backend=counter)
    def between(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        optimizer.step()
        return x.cos()

    for param in model.parameters():
        param.grad = torch.ones_like(param)
    for _ in range(3):
        assert torch.equal(between(torch.ones(3)), torch.ones(3).sin().cos())
    assert counter.frame_count == 2
    assert optimizer.stats()["steps"] == 3


def test_a_compiled_function_without_graph_breaks_refuses_step():
    optimizer = torchdion.Dion(network().parameters())
    with pytest.raises(torch._dynamo.exc.Unsupported, match="_update"):
        torch.compile(lambda: optimizer.step(), backend=BACKEND, fullgraph=True)()
