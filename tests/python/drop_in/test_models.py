"""Layers whose parameters are not simply a matrix and a bias, trained through autograd."""

import copy

import pytest
import torch
from runs import error
from torch import Tensor, nn
from torch.nn import functional

import torchdion


class Tied(nn.Module):
    """An embedding that is also the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8, padding_idx=0)
        self.hidden = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.embedding(x)).tanh())


class Experts(nn.Module):
    """Four stacked experts and a soft router."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.weight = nn.Parameter(torch.randn(4, 12, 8) / 8**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("be,eoi,bi->bo", self.router(x).softmax(-1), self.weight, x)


class Attention(nn.Module):
    """Query, key and value fused along the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.output = nn.Linear(8, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.attention(x, x, x, need_weights=False)[0][:, 0])


def convolution(dimensions: int) -> nn.Sequential:
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dimensions - 1]
    pool = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[dimensions - 1]
    layers = conv(4, 6, 3, groups=2), nn.GroupNorm(2, 6), nn.ReLU(), transposed(6, 8, 2, stride=2), pool(1)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 12))


def parametrized() -> nn.Sequential:
    wrap = nn.utils.parametrizations
    first, second = wrap.weight_norm(nn.Linear(8, 16)), wrap.spectral_norm(nn.Linear(16, 16))
    return nn.Sequential(first, nn.PReLU(16), second, nn.ReLU(), nn.Linear(16, 12))


class Last(nn.Module):
    """The last output of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0][:, -1]


def tokens() -> Tensor:
    return torch.randint(12, (16,))


def features(*shape: int) -> Tensor:
    return torch.randn(16, *shape)


MODELS = {
    "tied embedding": (Tied, tokens, {}),
    "embedding bag": (lambda: nn.Sequential(nn.EmbeddingBag(12, 8), nn.Linear(8, 12)), lambda: tokens()[:, None], {}),
    "experts": (Experts, lambda: features(8), {"weight": {"batch_dims": 1}}),
    "fused attention": (Attention, lambda: features(5, 8), {"attention.in_proj_weight": {"blocks": 3}}),
    "1-d convolution": (lambda: convolution(1), lambda: features(4, 7), {"0.weight": {"batch_dims": 0}}),
    "2-d convolution": (lambda: convolution(2), lambda: features(4, 5, 5), {}),
    "3-d convolution": (lambda: convolution(3), lambda: features(4, 4, 4, 4), {}),
    "parametrized": (parametrized, lambda: features(8), {}),
    "GRU": (
        lambda: nn.Sequential(Last(nn.GRU(8, 8, batch_first=True)), nn.Linear(8, 12)),
        lambda: features(5, 8),
        {},
    ),
}


def groups_of(model: nn.Module, options: dict[str, dict]) -> list[dict]:
    """One group for each parameter with options of its own, and one for the others."""
    named = dict(model.named_parameters())
    own = [{"params": [(name, named.pop(name))], **group} for name, group in options.items()]
    transposed = [name for name, param in named.items() if param.dim() == 3]
    own += [{"params": [(name, named.pop(name))], "batch_dims": 0, "fan_in_first": True} for name in transposed]
    return [*own, {"params": list(named.items())}]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("routed", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_such_layers_learns_its_data(name, routed):
    make, make_inputs, options = MODELS[name]
    model, inputs, targets = make(), make_inputs(), torch.randint(12, (16,))
    if name == "tied embedding":
        targets = (5 * inputs + 3) % 12
    groups = torchdion.param_groups(model) if routed else groups_of(model, options)
    optimizer = torchdion.Dion(groups, lr=0.05, rank_fraction=0.5)
    losses = []
    for _ in range(80):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] <= 0.5 * losses[0]
    assert set(optimizer.state) == set(model.parameters()), "each parameter once, tied or not"


@pytest.mark.parametrize("dimensions", [2, 3])
def test_channels_last_is_the_same_training(dimensions):
    """A memory format permutes the strides of weights and gradients and changes only rounding."""
    memory_format = {2: torch.channels_last, 3: torch.channels_last_3d}[dimensions]
    model = convolution(dimensions).double()
    starts = [X.detach().clone() for X in model.parameters()]
    last = copy.deepcopy(model).to(memory_format=memory_format)
    inputs = features(4, *[4] * dimensions).double()
    for each, x in ((model, inputs), (last, inputs.to(memory_format=memory_format))):
        optimizer = torchdion.Dion(torchdion.param_groups(each), lr=0.05, rank_fraction=0.5)
        for _ in range(5):
            optimizer.zero_grad()
            each(x).square().sum().backward()
            optimizer.step()
    assert last[0].weight.is_contiguous(memory_format=memory_format)
    assert not last[0].weight.is_contiguous()
    assert last[0].weight.grad.stride() == last[0].weight.stride()
    for X, Y, X0 in zip(last.parameters(), model.parameters(), starts, strict=True):
        assert error(X.detach(), Y.detach(), X0) <= 1e-8


def test_a_padding_row_of_an_embedding_without_decay_stays():
    model, inputs = Tied(), torch.randint(1, 12, (16,))
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    start = model.embedding.weight.detach().clone()
    optimizer = torchdion.Dion(torchdion.param_groups(model), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()
    moved = (model.embedding.weight != start).any(1)
    assert not moved[0]
    assert torch.equal(moved[inputs.unique()], torch.ones(len(inputs.unique()), dtype=torch.bool))
