"""Batches of token windows, each a pure function of (seed, step), so that a step is a data position."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from errors import Problem
from numpy.typing import NDArray
from torch import Tensor

Tokens: TypeAlias = NDArray[Any]  # one-dimensional, uint8 or uint16, in memory or memory-mapped


@dataclass(frozen=True)
class Source:
    """Token arrays (one per file, or several files joined) and the names that messages call them by."""

    arrays: Sequence[Tokens]
    names: Sequence[str]


@dataclass(frozen=True)
class Batch:
    inputs: Tensor  # (sequences, context), int64
    targets: Tensor  # the same, one token later


class Windows:
    """A source cut into windows of `context` tokens and the one after; no window spans two arrays."""

    def __init__(self, source: Source, context: int, vocab: int) -> None:
        self.source = source
        self.context = context
        self.vocab = vocab
        self.ends = np.cumsum([max(0, len(array) - 1) // context for array in source.arrays])
        self._epoch: tuple[tuple[int, int], NDArray[np.int64]] | None = None
        if len(self) == 0:
            longest = max(len(array) for array in source.arrays)
            raise Problem(f"--context {context} needs {context + 1} tokens in a row; {source.names[0]} has {longest}")

    def __len__(self) -> int:
        return int(self.ends[-1])

    def batch(self, seed: int, step: int, sequences: int) -> Batch:
        """The batch of training step `step`: the next `sequences` windows of a fresh shuffle per epoch."""
        first = step * sequences
        return self._gather([self._shuffled(seed, i) for i in range(first, first + sequences)])

    def evenly_spaced(self, sequences: int) -> Batch:
        """At most `sequences` windows spread over all tokens, the same for every seed."""
        count = min(sequences, len(self))
        return self._gather([i * len(self) // count for i in range(count)])

    def fingerprint(self) -> int:
        """Changes when the data do: a checksum of the arrays' lengths and of tokens spread over them."""
        checksum = 0
        for array in self.source.arrays:
            sample = np.ascontiguousarray(array[:: max(1, len(array) // 4096)])
            checksum = zlib.crc32(sample.tobytes(), zlib.crc32(str(len(array)).encode(), checksum))
        return checksum

    def _shuffled(self, seed: int, position: int) -> int:
        epoch, index = divmod(position, len(self))
        if self._epoch is None or self._epoch[0] != (seed, epoch):
            order = np.random.default_rng((seed, epoch)).permutation(len(self))
            self._epoch = ((seed, epoch), order)
        return int(self._epoch[1][index])

    def _gather(self, windows: Sequence[int]) -> Batch:
        rows = np.stack([self._window(window) for window in windows]).astype(np.int64)
        tokens = torch.from_numpy(rows)
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    def _window(self, window: int) -> Tokens:
        which = int(np.searchsorted(self.ends, window, side="right"))
        start = (window - (int(self.ends[which - 1]) if which else 0)) * self.context
        tokens = self.source.arrays[which][start : start + self.context + 1]
        # Checked here, as reading a whole shard beforehand would take minutes.
        largest = int(tokens.max())
        if largest >= self.vocab:
            raise Problem(f"{self.source.names[which]} holds token {largest}, but --vocab is {self.vocab}")
        return tokens
