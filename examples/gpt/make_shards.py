"""Token shards from text files: `python make_shards.py shards/ book/*.txt`.

Writes train_000000.bin, train_000001.bin, … and val_000000.bin, …; each file is a document, and goes to
training or to validation as a whole.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from corpus import VALIDATION_SHARE, is_validation
from data import Tokens
from errors import Problem, run_script
from flags import OneSentenceParser, below_one, whole
from shards import TOKEN, write_shard
from tokenizer import GPT2, Bytes, Tokenizer


def check(files: Iterable[Path]) -> None:
    """Raises Problem for a file without text, before anything is written."""
    for path in files:
        if path.is_file() and path.stat().st_size == 0:
            raise Problem(f"{path} is empty")


def split(files: list[Path], share: float) -> tuple[list[Path], list[Path]]:
    """Training and validation files; a single one is for training."""
    train: list[Path] = []
    held_out: list[Path] = []
    for path in files:
        (held_out if len(files) > 1 and is_validation(str(path), share) else train).append(path)
    if not train:
        raise Problem(f"all files fell to validation at --validation {share}; lower it")
    return train, held_out


def documents(files: Iterable[Path], tokenizer: Tokenizer) -> Iterator[Tokens]:
    """Each file's tokens, after the separator."""
    for path in files:
        try:
            text = path.read_bytes()
        except OSError as error:
            raise Problem(f"{path} cannot be read: {error.strerror}") from error
        yield np.concatenate(([tokenizer.separator], tokenizer.encode(text))).astype(TOKEN)


def pieces(stream: Iterable[Tokens], size: int) -> Iterator[Tokens]:
    """The same tokens in arrays of `size`, the last one shorter; a document may span two."""
    pending: list[Tokens] = []
    length = 0
    for tokens in stream:
        pending.append(tokens)
        length += len(tokens)
        if length >= size:
            joined = np.concatenate(pending)
            full = length - length % size
            yield from (joined[start : start + size] for start in range(0, full, size))
            pending, length = [joined[full:]], length - full
    if length:
        yield np.concatenate(pending)


def write_all(folder: Path, kind: str, files: list[Path], tokenizer: Tokenizer, size: int) -> None:
    total = 0
    for number, tokens in enumerate(pieces(documents(files, tokenizer), size)):
        write_shard(folder / f"{kind}_{number:06d}.bin", tokens)
        total += len(tokens)
    print(f"{folder}/{kind}_*.bin: {total:,} tokens of {len(files)} files")


def main(arguments: list[str]) -> int:
    parser = OneSentenceParser(prog="make_shards.py", description="Make token shards from text files.")
    parser.add_argument("folder", type=Path, help="where the shards go; made if need be")
    parser.add_argument("files", type=Path, nargs="+", help="text files")
    parser.add_argument("--tokenizer", choices=("bytes", "gpt2"), default="bytes", help="gpt2 needs tiktoken")
    parser.add_argument("--shard-tokens", type=whole(1), default=100_000_000, help="per shard (100 million)")
    parser.add_argument(
        "--validation", type=below_one, default=VALIDATION_SHARE, help="share of the files, about (0.1)"
    )
    given = parser.parse_args(arguments)
    tokenizer: Tokenizer = Bytes() if given.tokenizer == "bytes" else GPT2()
    if list(given.folder.glob("*.bin")):
        raise Problem(f"{given.folder} holds shards already")
    check(given.files)
    train, held_out = split(given.files, given.validation)
    given.folder.mkdir(parents=True, exist_ok=True)
    write_all(given.folder, "train", train, tokenizer, given.shard_tokens)
    if held_out:
        write_all(given.folder, "val", held_out, tokenizer, given.shard_tokens)
    elif given.validation > 0:
        print("no file fell to validation: train.py takes the last shard for it, or the end of a single one")
    return 0


if __name__ == "__main__":
    run_script(main)
