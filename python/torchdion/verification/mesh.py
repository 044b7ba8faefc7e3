"""The mesh that is verified: data parallel × fully sharded × tensor parallel."""

import argparse
import math
from dataclasses import astuple, dataclass

from torchdion.command_line import mesh_sizes


@dataclass(frozen=True)
class Sizes:
    """Ranks along each dimension; neighbours are along the last."""

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


def sizes(text: str) -> Sizes:
    """Those in "dp=2,fs=2,tp=2", where a dimension of one rank may be left out."""
    given = mesh_sizes(text)
    for name, size in given.items():
        if name not in ("dp", "fs", "tp"):
            raise argparse.ArgumentTypeError(f"must have dimensions among dp, fs and tp, got {name!r}")
        if size < 1:
            raise argparse.ArgumentTypeError(f"must have at least one rank along each dimension, got {name}={size}")
    return Sizes(**given)
