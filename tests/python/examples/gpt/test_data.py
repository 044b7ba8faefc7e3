"""examples/gpt: the standard library corpus, token shards, and batches as a function of (seed, step)."""

from pathlib import Path

import corpus
import make_shards
import numpy as np
import pytest
import shards
import torch
from data import Source, Tokens, Windows
from errors import Problem
from tokenizer import Bytes


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder like Python's library: 60 modules, and the folders that are left out."""
    for number in range(60):
        (tmp_path / f"module{number}.py").write_text(f"x = {number}\n")
    for left_out in ("test", "site-packages", "asyncio/tests"):
        folder = tmp_path / left_out
        folder.mkdir(parents=True)
        (folder / "unwanted.py").write_text("unwanted\n")
    (tmp_path / "notes.txt").write_text("unwanted\n")
    return tmp_path


def counting(length: int, *, start: int = 0) -> Tokens:
    return np.arange(start, start + length, dtype=np.uint16)


def windows(*lengths: int, context: int = 4) -> Windows:
    """Arrays that count on from each other, so that a token tells its place."""
    starts = np.cumsum([0, *lengths])
    arrays = [counting(length, start=start) for length, start in zip(lengths, starts, strict=False)]
    return Windows(Source(arrays, [f"shard{i}" for i in range(len(arrays))]), context, vocab=50304)


def test_files_are_in_one_half_of_the_split_and_none_is_lost(library: Path) -> None:
    train, validation = corpus.split_by_file(library)
    assert not set(train) & set(validation)
    assert len(train) + len(validation) == 60
    assert 1 <= len(validation) <= 15


def test_a_files_half_does_not_depend_on_the_other_files(library: Path) -> None:
    before = corpus.split_by_file(library)[1]
    for number in range(0, 60, 2):
        (library / f"module{number}.py").unlink()
    assert corpus.split_by_file(library)[1] == [path for path in before if path.exists()]


def test_joined_files_are_their_bytes_after_separators(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xc3\xa9")
    (tmp_path / "b").write_bytes(b"xy")
    assert corpus.join([tmp_path / "a", tmp_path / "b"]).tobytes() == b"\0\xc3\xa9\0xy"


def test_the_running_pythons_library_is_large_enough_and_the_same_every_time() -> None:
    train, validation = corpus.standard_library()
    assert len(train.arrays[0]) > 5_000_000
    assert len(validation.arrays[0]) > 32 * 8 * 256
    again, _ = corpus.standard_library()
    assert np.array_equal(train.arrays[0], again.arrays[0])


def test_targets_are_the_inputs_one_token_later() -> None:
    batch = windows(100).batch(seed=0, step=3, sequences=5)
    assert batch.inputs.shape == batch.targets.shape == (5, 4)
    assert torch.equal(batch.targets, batch.inputs + 1)


def test_an_epoch_reads_every_window_once_and_the_next_one_in_another_order() -> None:
    data = windows(41, 9, 30)  # 10 + 2 + 7 windows of 4
    assert len(data) == 19
    epochs = [[int(data.batch(0, 19 * e + s, 1).inputs[0, 0]) for s in range(19)] for e in range(2)]
    starts = [*range(0, 40, 4), 41, 45, *range(50, 78, 4)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == starts
    assert epochs[0] != epochs[1] != starts


def test_no_window_spans_two_arrays() -> None:
    data = windows(10, 7)
    everything = data.evenly_spaced(len(data))
    last_of_first = 9
    assert not ((everything.inputs <= last_of_first) & (everything.targets > last_of_first)).any()


def test_a_batch_is_a_function_of_seed_and_step_alone() -> None:
    data, fresh = windows(400), windows(400)
    for step in range(40):  # more than one epoch of 99 windows
        data.batch(0, step, 3)
    assert torch.equal(data.batch(0, 2, 3).inputs, fresh.batch(0, 2, 3).inputs)
    assert not torch.equal(data.batch(1, 2, 3).inputs, fresh.batch(0, 2, 3).inputs)


def test_validation_windows_are_spread_over_all_tokens() -> None:
    starts = windows(401).evenly_spaced(5).inputs[:, 0]
    assert starts.tolist() == [0, 80, 160, 240, 320]


def test_the_fingerprint_changes_with_the_data() -> None:
    prints = {windows(100).fingerprint(), windows(101).fingerprint(), windows(50, 50).fingerprint()}
    assert len(prints) == 3
    assert windows(100).fingerprint() in prints


def test_too_little_data_for_the_context_is_a_problem_that_names_both() -> None:
    with pytest.raises(Problem, match=r"--context 100 needs 101 tokens in a row; shard0 has 100"):
        windows(100, context=100)


def test_a_token_outside_the_vocabulary_is_a_problem_that_names_its_shard() -> None:
    data = Windows(Source([np.full(20, 300, dtype=np.uint16)], ["a.bin"]), 4, vocab=256)
    with pytest.raises(Problem, match=r"a\.bin holds token 300, but --vocab is 256"):
        data.batch(0, 0, 1)


def test_shards_round_trip_and_are_memory_mapped(tmp_path: Path) -> None:
    tokens = np.array([0, 1, 50303, 65535], dtype=np.uint16)
    shards.write_shard(tmp_path / "a.bin", tokens)
    read = shards.open_shard(tmp_path / "a.bin")
    assert isinstance(read, np.memmap)
    assert read.tolist() == tokens.tolist()
    assert (tmp_path / "a.bin").stat().st_size == 1024 + 2 * 4


def set_header(path: Path, index: int, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(4 * index)
        file.write(np.int32(value).tobytes())


@pytest.mark.parametrize(
    "damage, sentence",
    [
        (lambda path: set_header(path, 0, 7), "is no token shard: it starts with 7 where 20240520"),
        (lambda path: set_header(path, 1, 2), "of version 2; only version 1"),
        (lambda path: set_header(path, 2, 0), "is an empty token shard"),
        (lambda path: set_header(path, 2, -5), "is an empty token shard"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "is truncated: .* 10 tokens, 1044 bytes"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "is too long"),
        (lambda path: path.write_bytes(b""), "0 bytes are less than its header"),
        (lambda path: path.unlink(), "cannot be read: No such file"),
    ],
)
def test_a_damaged_shard_is_a_problem_that_says_how(tmp_path: Path, damage, sentence: str) -> None:
    path = tmp_path / "a.bin"
    shards.write_shard(path, counting(10))
    damage(path)
    with pytest.raises(Problem, match=sentence):
        shards.open_shard(path)


def make_three(folder: Path) -> str:
    for number in range(3):
        shards.write_shard(folder / f"s{number}.bin", counting(20, start=100 * number))
    return str(folder / "s*.bin")


def test_of_several_shards_the_last_is_for_validation(tmp_path: Path) -> None:
    train, validation = shards.open_split(make_three(tmp_path), None)
    assert [int(array[0]) for array in train.arrays] == [0, 100]
    assert [int(array[0]) for array in validation.arrays] == [200]


def test_of_a_single_shard_the_tail_is_for_validation(tmp_path: Path) -> None:
    make_three(tmp_path)
    train, validation = shards.open_split(str(tmp_path / "s1.bin"), None)
    assert train.arrays[0].tolist() == list(range(100, 118))
    assert validation.arrays[0].tolist() == [118, 119]


def test_named_validation_shards_are_used_and_may_not_be_trained_on(tmp_path: Path) -> None:
    pattern = make_three(tmp_path)
    train, validation = shards.open_split(str(tmp_path / "s[01].bin"), str(tmp_path / "s2.bin"))
    assert len(train.arrays) == 2
    assert int(validation.arrays[0][0]) == 200
    with pytest.raises(Problem, match=r"s1\.bin is named by both --data and --val-data"):
        shards.open_split(pattern, str(tmp_path / "s1.bin"))


def test_make_shards_keeps_every_byte_of_every_file(tmp_path: Path, library: Path) -> None:
    files = corpus.library_files(library)
    out = tmp_path / "shards"
    make_shards.main([str(out), *map(str, files), "--shard-tokens", "64"])
    kinds = {kind: sorted(out.glob(f"{kind}_*.bin")) for kind in ("train", "val")}
    held_out = [path for path in files if corpus.is_validation(str(path))]
    for kind, expected in (("train", [p for p in files if p not in held_out]), ("val", held_out)):
        pieces = [shards.open_shard(path) for path in kinds[kind]]
        assert all(len(piece) == 64 for piece in pieces[:-1])
        assert np.concatenate(pieces).tolist() == corpus.join(expected).tolist()


@pytest.mark.parametrize("held_out", [False, True], ids=["of training", "of validation"])
def test_a_single_file_is_for_training_and_the_user_is_told(tmp_path: Path, capsys, held_out: bool) -> None:
    names = (tmp_path / f"{number}.txt" for number in range(1000))
    path = next(path for path in names if corpus.is_validation(str(path)) is held_out)
    path.write_text("a text")
    assert make_shards.main([str(tmp_path / "shards"), str(path)]) == 0
    assert [shard.name for shard in (tmp_path / "shards").iterdir()] == ["train_000000.bin"]
    assert capsys.readouterr().out.splitlines()[1].startswith("no file fell to validation: train.py takes")


def test_an_empty_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    full, empty = tmp_path / "full.txt", tmp_path / "empty.txt"
    full.write_text("a text")
    empty.touch()
    with pytest.raises(Problem, match=f"^{empty} is empty$"):
        make_shards.main([str(tmp_path / "shards"), str(full), str(empty)])
    assert not (tmp_path / "shards").exists()


def test_bytes_decode_to_the_text_they_encode() -> None:
    text = "naïve → x²"
    assert Bytes().decode([int(token) for token in Bytes().encode(text.encode())]) == text
