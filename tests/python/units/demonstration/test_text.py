"""The text is prose, the same wherever the same Python is, and is made of whole words."""

import re
from pathlib import Path

import pytest

from torchdion.demonstration.text import RARE, NoText, Vocabulary, prose

MODULE = '''"""Return the number of words that lie in
the file.

Return the number of words that lie in the file.

    >>> not = prose                            # nor is this.

Column     Another
----------------------------------------------------.
"""
'''


def test_the_text_is_the_docstrings_paragraphs_each_once_and_in_one_line(tmp_path: Path) -> None:
    for place in ("module.py", "package/module.py", "site-packages/module.py", "test/module.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(MODULE.replace("file", place.split("/")[0].split(".")[0]))
    assert prose(tmp_path).splitlines() == [
        "Return the number of words that lie in the module.",
        "Return the number of words that lie in the package.",
    ]


def test_a_python_without_sources_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NoText, match=f"^no docstrings of the standard library, .* lie in {tmp_path}$"):
        prose(tmp_path)


def test_this_python_has_text_enough_and_no_lines_drawn_of_characters() -> None:
    text = prose()
    assert len(text) > 400_000
    assert not re.search(r"(.)\1{3}", text)
    assert prose() == text


def test_tokens_are_the_most_frequent_pieces() -> None:
    text = "Send it. Send a word.\nSend it back."
    whole = Vocabulary(text)
    assert whole.decode(whole.encode(text)) == text
    few = Vocabulary(text, size=4)  # beside the token of rare pieces: "." and "Send" or " Send", " it"
    assert len(few) == 4
    assert few.decode(few.encode("Give it.")) == "… it."
    assert few.encode("Give it.")[0] == RARE
