"""The reference lists everything: public names of both languages, options with their defaults, errors by their text."""

import inspect
import re
from pathlib import Path

import pytest
from option_tables import OF_GROUPS, defaults_of, row, table
from pages import ROOT

import torchdion
from torchdion.optimizer import Optimizer
from torchdion.table import OPTIONS, STATE_DTYPES

DOCS = ROOT / "docs"
FRONTS = [each for each in map(vars(torchdion).get, torchdion.__all__) if inspect.isclass(each)]
OPTIMIZERS = [each for each in FRONTS if issubclass(each, Optimizer)]
OWN_TABLE = [each for each in OPTIMIZERS if not each.__name__.startswith("Dist")]


def test_every_public_name_of_python_is_there():
    page = (DOCS / "reference" / "python.md").read_text()
    names = set(torchdion.__all__) - {"_C", "__version__"}
    missing = {name for name in names if not re.search(rf"^\.\. auto\w+:: (torchdion\.)?{name}$", page, re.MULTILINE)}
    assert missing == set()


def test_every_public_name_of_cpp_is_there():
    headers = "\n".join(path.read_text() for path in (ROOT / "include" / "torchdion").glob("*.h"))
    types = re.findall(r"^(?:class|struct|enum class) (\w+)[^;]*\{", headers, re.MULTILINE)
    functions = re.findall(r"^[\w:][\w:<>&* ]* (\w+)\(", headers, re.MULTILINE)
    page = (DOCS / "reference" / "cpp.rst").read_text()
    documented = set(re.findall(r"^\.\. doxygen\w+:: torchdion::(\w+)$", page, re.MULTILINE))
    assert len(types) > 25 and {"param_groups", "gloo_group", "write_checkpoint", "read_checkpoint"} <= set(functions)
    assert set(types) | set(functions) | {"DionOptions"} == documented


@pytest.mark.parametrize("front", OWN_TABLE, ids=lambda front: front.__name__)
def test_a_table_has_every_option_that_a_constructor_takes(front):
    taken = {name for name in inspect.signature(front).parameters if name in OPTIONS}
    rows = defaults_of(front.algorithm, front)
    assert set(rows) <= taken
    left_out = {name for name in taken - set(rows) if front.algorithm in OPTIONS[name]["algorithms"]}
    assert left_out == set()
    page = (DOCS / "reference" / "options.md").read_text()
    assert f"```{{options}} {front.__name__}\n" in page


def test_every_option_is_in_a_table():
    in_tables = {name for front in OWN_TABLE for name in defaults_of(front.algorithm, front)}
    assert in_tables | set(OF_GROUPS) | set(filter(None, STATE_DTYPES.values())) == set(OPTIONS)


@pytest.mark.parametrize(
    ("algorithm", "name", "meaning"),
    [
        ("muon", "lr", "learning rate η, before the factor that adjust_lr says"),
        ("lion", "lr", "learning rate η"),
        ("muon", "nesterov", "orthonormalize G + μ M, not M"),
        ("demo", "mu", "momentum decay μ (arXiv 2411.19870)"),
        ("adamw", "betas", "β₁ and β₂ of the moments (arXiv 1711.05101)"),
    ],
)
def test_a_table_has_the_words_of_its_own_algorithm(algorithm, name, meaning):
    assert row(name, None, algorithm)[2] == meaning


def test_a_table_escapes_what_would_end_a_cell():
    assert table([("a|b", "c")], ("x", "y")) == "| x | y |\n| --- | --- |\n| a\\|b | c |"


def sentences() -> str:
    """What the sources say, with the literals of a sentence put together."""
    paths = [*(ROOT / "python" / "torchdion").rglob("*.py"), *(ROOT / "csrc").rglob("*.cpp")]
    text = "\n".join(path.read_text() for path in paths)
    return re.sub(r'"\s*\n\s*f?"', "", text)


def test_errors_of_the_faq_are_said_somewhere():
    page = (DOCS / "faq.md").read_text()
    errors = re.findall(r"^### `(.*)`$", page, re.MULTILINE)
    said = sentences()
    assert len(errors) >= 15
    assert [error for error in errors if error not in said] == []
    assert len(re.findall(r"^### \w", page, re.MULTILINE)) >= 10  # questions


def test_every_figure_that_can_be_drawn_is_on_a_page():
    pages = "\n".join(path.read_text() for path in [ROOT / "README.md", *DOCS.rglob("*.md")])
    for figure in (DOCS / "figures").glob("*.svg"):
        assert f"figures/{figure.name}" in pages or figure.name == "logo.svg"
    assert Path(DOCS / "static" / "logo.svg").read_bytes() == (DOCS / "figures" / "logo.svg").read_bytes()


def test_all_files_have_the_version_of_the_newest_release():
    changes = re.findall(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text()
    version, date = changes[0]
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == version
    assert re.search(r"^date-released: (.*)$", citation, re.MULTILINE)[1] == date
    assert re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1] == version
    assert re.search(r"project\(torchdion VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1] == version
    assert torchdion.__version__ == version
