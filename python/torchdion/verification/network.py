"""A small transformer with parameters of every role, and how a mesh of processes takes it apart."""

import math
from dataclasses import astuple, dataclass, replace

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Shape:
    """The sizes of a network; heads and hidden are rounded up to a multiple of the ranks that tp cuts them over."""

    blocks: int
    width: int
    heads: int
    head_size: int
    hidden: int
    vocabulary: int
    length: int  # of a sequence

    def on(self, tp: int) -> "Shape":
        heads, hidden = (tp * math.ceil(number / tp) for number in (self.heads, self.hidden))
        return replace(self, heads=heads, hidden=hidden)


MODELS = {
    "small": Shape(blocks=2, width=13, heads=2, head_size=3, hidden=22, vocabulary=19, length=6),
    "gpt-tiny": Shape(blocks=4, width=128, heads=4, head_size=32, hidden=512, vocabulary=256, length=64),
}
"""The small one has odd sizes, so that fs cuts nothing evenly."""


class Block(nn.Module):
    """Attention and an MLP. Keys have no bias: its gradient is zero but for rounding, whose sign Lion would follow."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        inner = shape.heads * shape.head_size
        self.head_size = shape.head_size
        self.before_attention = nn.LayerNorm(shape.width)
        self.query = nn.Linear(shape.width, inner)
        self.key = nn.Linear(shape.width, inner, bias=False)
        self.value = nn.Linear(shape.width, inner, bias=False)
        self.output = nn.Linear(inner, shape.width)
        self.before_mlp = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, shape.hidden)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.output(self._attention(self.before_attention(x)))
        hidden = nn.functional.gelu(self.up(self.before_mlp(x)))
        y: Tensor = x + self.down(hidden)
        return y

    def _attention(self, x: Tensor) -> Tensor:
        q, k, v = (self._by_head(part(x)) for part in (self.query, self.key, self.value))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_size).transpose(1, 2)


class Network(nn.Module):
    """The same weights in every process."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


@dataclass(frozen=True)
class Sizes:
    """Of a mesh: the ranks along data parallel, fully sharded and tensor parallel, of which tp has neighbours."""

    dp: int = 1
    fs: int = 1
    tp: int = 1

    @property
    def world_size(self) -> int:
        return math.prod(astuple(self))

    @property
    def data_ranks(self) -> int:
        """That have sequences of their own."""
        return self.dp * self.fs

    def coordinate(self, rank: int) -> dict[str, int]:
        return {"dp": rank // (self.fs * self.tp), "fs": rank // self.tp % self.fs, "tp": rank % self.tp}

    def __str__(self) -> str:
        return f"dp={self.dp} fs={self.fs} tp={self.tp}"


CUTS = {
    "query": ColwiseParallel(),
    "key": ColwiseParallel(),
    "value": ColwiseParallel(),
    "output": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}
"""How tp takes a block apart; embedding, norms and head are whole on its ranks."""


def distribute(network: Network, mesh: DeviceMesh, sizes: Sizes, averages: bool) -> nn.Module:
    """The same network on the mesh, whose wrappers leave the gradients of dp alone where the optimizer averages."""
    if sizes.tp > 1:
        for block in network.blocks:
            parallelize_module(block, mesh["tp"], CUTS, src_data_rank=None)  # all have the same weights
    if sizes.dp > 1 and sizes.fs == sizes.tp == 1:
        return DistributedDataParallel(network, device_mesh=mesh["dp"])
    if sizes.data_ranks > 1:
        shards = mesh["fs"] if averages or sizes.dp == 1 else mesh["dp", "fs"]
        for block in network.blocks:
            fully_shard(block, mesh=shards)
        fully_shard(network, mesh=shards)
    return network
