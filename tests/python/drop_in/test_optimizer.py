"""The drop-in: what every torch.optim optimizer can do."""

import copy
import io
import pickle

import pytest
import torch
from runs import error, follow, normals, run
from torch import Tensor, nn
from torch.nn import Parameter

import torchdion
from torchdion.table import ALGORITHMS


class ConvolutionalNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 3, stride=2), nn.Flatten()
        )
        self.output = nn.Linear(4 * 13 * 13, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.layers(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 8, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.output = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.norm(self.lstm(self.embedding(x))[0][:, -1]))


MODELS = {
    "MLP": (lambda: nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 5)), lambda: torch.randn(16, 10)),
    "convolutions": (ConvolutionalNetwork, lambda: torch.randn(16, 3, 8, 8)),
    "recurrent": (Recurrent, lambda: torch.randint(11, (16, 7))),
    "transformer": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), nn.Flatten(), nn.Linear(40, 5)
        ),
        lambda: torch.randn(16, 5, 8),
    ),
}


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor, steps: int
) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("routed", [False, True])
@pytest.mark.parametrize("scalar_algorithm", ["lion", "adamw"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_trains(name, scalar_algorithm, routed):
    make_model, make_inputs = MODELS[name]
    model, inputs, targets = make_model(), make_inputs(), torch.randint(5, (16,))
    params = torchdion.param_groups(model, scalar_algorithm=scalar_algorithm) if routed else model.parameters()
    optimizer = torchdion.Dion(params, lr=0.02, scalar_algorithm=scalar_algorithm, rank_fraction=0.5)
    losses = train(model, optimizer, inputs, targets, 120)
    assert losses[0] >= 1.2
    assert losses[-1] <= 0.5 * losses[0]


def test_a_closure_is_evaluated_once_with_gradients_and_its_loss_returned():
    X = Parameter(torch.ones(3, 3))
    optimizer = torchdion.Dion([X])
    calls = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = X.square().sum()
        loss.backward()
        calls.append(torch.is_grad_enabled())
        return loss

    assert optimizer.step(closure).item() == 9
    assert calls == [True]
    assert X.detach().norm() < 3
    assert optimizer.step() is None


def test_zero_grad_and_none_gradients_and_frozen_parameters():
    X, frozen, unused = (
        Parameter(torch.ones(3, 3)),
        Parameter(torch.ones(3, 3), requires_grad=False),
        Parameter(torch.ones(4)),
    )
    optimizer = torchdion.Dion([X, frozen, unused], weight_decay=0.5)
    X.grad = torch.ones(3, 3)
    optimizer.step()
    assert not torch.equal(X, torch.ones(3, 3))
    assert torch.equal(frozen, torch.ones(3, 3))
    assert torch.equal(unused, torch.ones(4))
    assert set(optimizer.state) == {X}
    optimizer.zero_grad()
    assert X.grad is None
    moved = X.detach().clone()
    optimizer.step()
    assert torch.equal(X, moved), "no gradient: not even weight decay, as in torch"


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (0, 0), (0, 3, 2, 2)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_parameters_of_zero_size_are_passed_over(algorithm, shape):
    empty, X = Parameter(torch.empty(shape)), Parameter(torch.ones(4, 4))
    optimizer = torchdion.Dion([{"params": [empty, X], "algorithm": algorithm}])
    for _ in range(2):
        empty.grad, X.grad = torch.empty(shape), torch.ones(4, 4)
        optimizer.step()
    assert not torch.equal(X, torch.ones(4, 4))
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()


def test_parameters_of_mixed_dtypes_share_an_optimizer():
    dtypes = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
    starts, *gradients = normals(4, *[(12, 8)] * 4, *[(5,)] * 4)
    starts = [X.to(dtype) for X, dtype in zip(starts, dtypes * 2, strict=True)]
    gradients = [[G.to(dtype) for G, dtype in zip(step, dtypes * 2, strict=True)] for step in gradients]
    together = run(starts, gradients)
    for index, (X, X0) in enumerate(zip(together, starts, strict=True)):
        # Q's start is drawn by a parameter's place, so that each keeps its place beside frozen ones
        params = [Parameter(Y.clone()) for Y in starts]
        optimizer = torchdion.Dion(params)
        for step in gradients:
            params[index].grad = step[index]
            optimizer.step()
        assert X.dtype == X0.dtype
        assert torch.equal(X, params[index])


def test_a_group_has_its_own_options():
    starts, *gradients = normals(4, (9, 6), (9, 6), (9, 6))
    options = [
        {"lr": 0.3},
        {"mu": 0.5, "weight_decay": 0.3, "maximize": True},
        {"rank_fraction": 0.5, "orientation": "left"},
    ]
    params = [Parameter(X.clone()) for X in starts]
    groups = [{"params": [X], "seed": 5, **group} for X, group in zip(params, options, strict=True)]
    optimizer = torchdion.Dion(groups[:2], lr=0.02)
    optimizer.add_param_group(groups[2])
    follow(optimizer, params, gradients)
    for index, group in enumerate(options):
        alone = [Parameter(X.clone()) for X in starts]
        reference = torchdion.Dion(alone, **{"lr": 0.02, "seed": 5, **group})
        follow(reference, alone, gradients)
        assert torch.equal(params[index], alone[index])


def test_named_parameters_keep_their_names():
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    optimizer = torchdion.Dion(model.named_parameters())
    assert optimizer.param_groups[0]["param_names"] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    train(model, optimizer, torch.randn(5, 4), torch.randint(3, (5,)), 2)
    assert optimizer.state_dict()["param_groups"][0]["param_names"][3] == "1.bias"


def test_parameters_added_later_train_beside_the_others():
    starts, *gradients = normals(4, (9, 6), (5, 7))
    first, second = (Parameter(X.clone()) for X in starts)
    optimizer = torchdion.Dion([first])
    follow(optimizer, [first], [step[:1] for step in gradients[:2]])
    optimizer.add_param_group({"params": second, "lr": 0.5})
    follow(optimizer, [first, second], gradients[2:])
    assert torch.equal(first, run(starts[:1], [step[:1] for step in gradients])[0])
    assert not torch.equal(second, starts[1])


@pytest.mark.parametrize("copier", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_of_the_optimizer_continues_identically(copier):
    starts, *gradients = normals(8, (9, 6), (7,), dtype=torch.float32)
    params = [Parameter(X.clone()) for X in starts]
    groups = [
        {"params": params[:1], "mine": "kept"},
        {"params": params[1:], "algorithm": "adamw", "lr_multiplier": 0.5},
    ]
    optimizer = torchdion.Dion(groups, rank_fraction=0.5, nonfinite="zero", seed=4)
    follow(optimizer, params, gradients[:4])
    if copier == "deepcopy":
        twin = copy.deepcopy(optimizer)
    elif copier == "pickle":
        twin = pickle.loads(pickle.dumps(optimizer))
    else:
        buffer = io.BytesIO()
        torch.save(optimizer, buffer)
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=False)
    copies = [param for group in twin.param_groups for param in group["params"]]
    gradients[5][0][0, 0] = float("nan")  # the policy is kept too
    follow(optimizer, params, gradients[4:])
    follow(twin, copies, gradients[4:])
    assert all(map(torch.equal, params, copies))
    assert params[0].isfinite().all()
    assert twin.param_groups[0]["mine"] == "kept"


def test_stats_say_what_happened():
    X, b = Parameter(torch.ones(6, 4)), Parameter(torch.ones(5))
    optimizer = torchdion.Dion([{"params": [X]}, {"params": [b], "algorithm": "adamw"}], rank_fraction=0.5)
    assert optimizer.stats()["steps"] == 0
    follow(optimizer, [X, b], [[torch.ones(6, 4), torch.ones(5)]] * 3)
    stats = optimizer.stats()
    assert stats["steps"] == 3
    assert stats["skipped_steps"] == stats["nonfinite_entries"] == 0
    assert stats["columns_without_signal"] == 3, "one of P's two at each step: the gradients have rank one"
    assert stats["parameters"] == {"dion": 1, "adamw": 1}
    assert stats["state_bytes"] == 4 * (24 + 6 * 2 + 1 + 5 + 5 + 1)
    assert stats["workspace_bytes"] == 4 * (16 + 6 * 2)  # P, 4×2, has room to where R is aligned
    assert stats["batches"] == 2
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.stats()["steps"] == 3, "calls of step() by this object"


def test_the_learning_rate_as_a_tensor_is_read_at_every_step():
    [X0], *gradients = normals(4, (6, 4))
    X = Parameter(X0.clone())
    lr = torch.tensor(0.02, dtype=torch.float64)
    optimizer = torchdion.Dion([X], lr=lr)
    follow(optimizer, [X], gradients[:1])
    lr.fill_(0.0)
    still = X.detach().clone()
    follow(optimizer, [X], gradients[1:])
    assert torch.equal(X, still)
    assert error(X, run([X0], gradients[:1], lr=0.02)[0], X0) == 0
