"""Text to tokens and back: plain bytes, or GPT-2's pairs where tiktoken is installed."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from data import Tokens
from errors import Problem


class Tokenizer(Protocol):
    separator: int  # stands before every document

    def encode(self, text: bytes) -> Tokens: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class Bytes:
    """One token per byte; text holds no zero byte, which therefore separates documents."""

    separator = 0

    def encode(self, text: bytes) -> Tokens:
        return np.frombuffer(text, dtype=np.uint8)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class GPT2:
    """GPT-2's byte pairs.

    Raises:
        Problem: tiktoken is not installed, or cannot get the vocabulary, which it downloads at its first use.
    """

    separator = 50256

    def __init__(self) -> None:
        try:
            import tiktoken  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise Problem("GPT-2's tokens need the package tiktoken; `pip install tiktoken`") from error
        try:
            self._pairs = tiktoken.get_encoding("gpt2")
        except Exception as error:  # whatever its HTTP library raises
            raise Problem(f"tiktoken cannot get GPT-2's vocabulary: {type(error).__name__}") from error

    def encode(self, text: bytes) -> Tokens:
        return np.array(self._pairs.encode_ordinary(text.decode(errors="replace")), dtype=np.uint16)

    def decode(self, tokens: Sequence[int]) -> str:
        # The model's vocabulary is padded beyond the tokenizer's.
        return str(self._pairs.decode([token for token in tokens if token <= self.separator]))


def for_vocabulary(vocab: int) -> Tokenizer:
    """The tokenizer that a vocabulary of this size stands for."""
    return Bytes() if vocab == 256 else GPT2()
