"""One module and one header hold what may differ between versions of torch."""

import re
from pathlib import Path

import torchdion

PACKAGE = Path(torchdion.__file__).parent
CSRC = Path(__file__).parents[2] / "csrc"
PRIVATE_IMPORT = re.compile(r"^\s*from torch(?:\.\w+)* import .*\b_[a-z]|^\s*from torch(?:\.\w+)*\._\w+", re.MULTILINE)


def test_the_private_names_of_torch_are_imported_by_one_module_alone() -> None:
    modules = {path.name for path in PACKAGE.rglob("*.py") if PRIVATE_IMPORT.search(path.read_text())}
    assert modules == {"torch_versions.py"}


def test_no_code_asks_for_the_version_of_torch() -> None:
    asked = re.compile(
        r"TORCH_VERSION_M|TORCH_VERSION_P|torch\.__version__ *[<>=!]|torch\.__version__\.split|Version\(torch"
    )
    files = [*PACKAGE.rglob("*.py"), *CSRC.rglob("*.h"), *CSRC.rglob("*.cpp")]
    assert [path.name for path in files if asked.search(path.read_text())] == []
