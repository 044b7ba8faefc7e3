"""The paper's GPT: rotary positions, weightless RMSNorm, squared-ReLU MLP, no biases, untied head."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROTARY_BASE = 10000.0
# The embedding is normalized when read, so its scale only sets how fast it turns.
EMBEDDING_STD = 0.02
# The standard deviation of the first logits.
HEAD_GAIN = 0.25


@dataclass(frozen=True)
class Shape:
    """What fixes the parameters; the context does not, as rotary positions have no weights."""

    vocab: int
    layers: int
    d_model: int
    heads: int


def parameters(shape: Shape) -> int:
    """How many there are."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in GPT(shape).parameters())


def rms_norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.size(-1),))


def rotary_table(length: int, d_head: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of position * frequency, each (length, d_head / 2)."""
    frequency = ROTARY_BASE ** -(torch.arange(0, d_head, 2, device=device, dtype=torch.float32) / d_head)
    angle = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[k], x[k + d_head/2]) by its position's angle; x is (batch, heads, length, d_head)."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return turned.type_as(x)


class Attention(nn.Module):
    """Causal self-attention; queries, keys and values are three matrices, each orthonormalized by itself."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.d_head = d_model // heads
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        split = (*x.shape[:2], -1, self.d_head)  # all heads, or those of this process
        q, k, v = (linear(x).view(split).transpose(1, 2) for linear in (self.query, self.key, self.value))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.output(y.transpose(1, 2).flatten(2))
        return mixed


class MLP(nn.Module):
    """d_model -> 4 d_model -> d_model with max(0, x)² between."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, 4 * d_model, bias=False)
        self.down = nn.Linear(4 * d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.relu(self.up(x)).square())
        return y


class Block(nn.Module):
    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(d_model, heads)
        self.mlp = MLP(d_model)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(rms_norm(x), cos, sin)
        y: Tensor = x + self.mlp(rms_norm(x))
        return y


class GPT(nn.Module):
    """Tokens (batch, length) to next-token logits (batch, length, vocab)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.d_model)
        self.blocks = nn.ModuleList(Block(shape.d_model, shape.heads) for _ in range(shape.layers))
        self.head = nn.Linear(shape.d_model, shape.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = rms_norm(self.embedding(tokens))
        cos, sin = rotary_table(tokens.size(1), self.shape.d_model // self.shape.heads, tokens.device)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits: Tensor = self.head(rms_norm(x))
        return logits

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw all weights from `generator` (on the CPU, so that every device starts alike).

        The matrices that write into the residual stream start at zero, and so every block as the identity.
        The head starts small, so that the first prediction is nearly uniform, but not at zero, which would
        keep the first gradient from all that lies below it.
        """
        for name, weight in self.named_parameters():
            if name.endswith(("output.weight", "down.weight")):
                weight.zero_()
            elif name == "embedding.weight":
                weight.copy_(_normal(weight.shape, EMBEDDING_STD, generator))
            else:
                gain = HEAD_GAIN if name == "head.weight" else 1.0
                weight.copy_(_normal(weight.shape, gain * weight.size(1) ** -0.5, generator))


def _normal(shape: torch.Size, std: float, generator: torch.Generator) -> Tensor:
    return torch.empty(shape).normal_(0.0, std, generator=generator)
