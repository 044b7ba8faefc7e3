"""Token shards as FineWeb's are stored: 256 int32 of header (magic, version, count), then uint16 tokens."""

import glob
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from data import Source, Tokens
from errors import Problem, writing

MAGIC = 20240520
VERSION = 1
HEADER = np.dtype("<i4")
TOKEN = np.dtype("<u2")
HEADER_LENGTH = 256
HEADER_BYTES = HEADER_LENGTH * HEADER.itemsize
# Of a single shard, this share at its end is for validation.
TAIL_SHARE = 0.1


def write_shard(path: Path, tokens: Tokens) -> None:
    """Write `tokens` (each below 65536) as one shard."""
    header = np.zeros(HEADER_LENGTH, dtype=HEADER)
    header[:3] = MAGIC, VERSION, len(tokens)
    with writing(path), path.open("wb") as file:
        file.write(header.tobytes())
        file.write(np.asarray(tokens, dtype=TOKEN).tobytes())


def open_shard(path: Path) -> Tokens:
    """The tokens of a shard, memory-mapped.

    Raises:
        Problem: the file is unreadable, is no such shard, is empty, or is longer or shorter than it says.
    """
    try:
        size = path.stat().st_size
        header = np.fromfile(path, dtype=HEADER, count=HEADER_LENGTH)
    except OSError as error:
        raise Problem(f"{path} cannot be read: {error.strerror}") from error
    if len(header) < HEADER_LENGTH:
        raise Problem(f"{path} is no token shard: {size} bytes are less than its header of {HEADER_BYTES}")
    magic, version, count = (int(value) for value in header[:3])
    if magic != MAGIC:
        raise Problem(f"{path} is no token shard: it starts with {magic} where {MAGIC} is expected")
    if version != VERSION:
        raise Problem(f"{path} is a token shard of version {version}; only version {VERSION} can be read")
    if count <= 0:
        raise Problem(f"{path} is an empty token shard")
    expected = HEADER_BYTES + count * TOKEN.itemsize
    if size != expected:
        state = "truncated" if size < expected else "too long"
        raise Problem(f"{path} is {state}: its header promises {count} tokens, {expected} bytes, it has {size}")
    return np.memmap(path, dtype=TOKEN, mode="r", offset=HEADER_BYTES, shape=(count,))


def matching(pattern: str, flag: str) -> list[Path]:
    """The files that `pattern` names, sorted; `flag` is the option it was given by."""
    paths = sorted(Path(name) for name in glob.glob(pattern, recursive=True))
    if not paths:
        raise Problem(f"{flag}: no file matches {pattern!r}")
    return paths


def open_all(paths: Sequence[Path]) -> Source:
    return Source([open_shard(path) for path in paths], [str(path) for path in paths])


def open_split(data: str, validation: str | None) -> tuple[Source, Source]:
    """Training and validation shards.

    Validation is what `validation` names; without it the last of several shards, or the tail of the only one.
    """
    paths = matching(data, "--data")
    if validation is not None:
        held_out = matching(validation, "--val-data")
        both = {path.resolve() for path in paths} & {path.resolve() for path in held_out}
        if both:
            raise Problem(f"{min(both)} is named by both --data and --val-data")
        return open_all(paths), open_all(held_out)
    if len(paths) > 1:
        return open_all(paths[:-1]), open_all(paths[-1:])
    only = open_all(paths)
    tokens = only.arrays[0]
    cut = len(tokens) - int(TAIL_SHARE * len(tokens))
    return Source([tokens[:cut]], only.names), Source([tokens[cut:]], only.names)
