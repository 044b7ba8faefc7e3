"""The tables of names by which Python and C++ route parameters are the same."""

import re
from pathlib import Path

import pytest

from torchdion import heads, kinds

SOURCES = Path(__file__).parents[3] / "csrc" / "optim"
TABLES = {
    "heads.cpp": {
        "kHeads": heads._HEADS,
        "kTopLevelHead": heads._TOP_LEVEL_HEAD,
        "kClassifiers": heads._CLASSIFIERS,
        "kLastClassifiers": heads._LAST_CLASSIFIERS,
        "kInserted": heads._INSERTED,
        "kWrapped": heads._WRAPPED,
        "kNoVocabulary": heads._NO_VOCABULARY,
        "kWord": heads._WORD,
    },
    "kinds.cpp": {
        "kExperts": kinds._EXPERTS,
        "kNoMatrix": kinds._NO_MATRIX,
        "kGain": kinds._GAIN,
        "kProjection": kinds._PROJECTION,
    },
}
CONSTANT = re.compile(r"constexpr (?:std::array|const char\*) (k\w+) =(.*?\S);(?=\n|  //)", re.DOTALL)
LITERAL = re.compile(r'R"\((.*?)\)"|"(.*?)"')


def tables_in(source: str) -> dict[str, str | tuple[str, ...]]:
    found: dict[str, str | tuple[str, ...]] = {}
    for name, value in CONSTANT.findall((SOURCES / source).read_text()):
        strings = tuple(raw or plain for raw, plain in LITERAL.findall(value))
        found[name] = strings if "{" in value.partition('"')[0] else strings[0]
    return found


@pytest.mark.parametrize("source", TABLES)
def test_the_names_that_decide_are_the_same_in_both_languages(source):
    assert tables_in(source) == TABLES[source]
