"""One module and one header hold what may differ between versions of torch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchdion

PACKAGE = Path(torchdion.__file__).parent
CSRC = Path(__file__).parents[3] / "csrc"
PRIVATE_IMPORT = re.compile(
    r"^\s*from torch(?:\.\w+)* import (?:\([^)]*|.*)\b_[A-Za-z]|^\s*(?:from|import) torch(?:\.\w+)*\._\w+", re.MULTILINE
)


@pytest.mark.parametrize(
    ("line", "is_private"),
    [
        ("from torch.nn.utils.parametrizations import _WeightNorm", True),
        ("from torch.optim.optimizer import (\n    Optimizer,\n    _use_grad,\n)", True),
        ("from torch._C._distributed_c10d import TCPStore", True),
        ("    import torch._dynamo", True),
        ("import torch.distributed._tensor as tensor", True),
        ("from torch.optim.optimizer import Optimizer", False),
        ("import torch.distributed as dist", False),
        ("from torchdion import _C", False),
    ],
)
def test_a_private_import_is_found_however_it_is_written(line: str, is_private: bool) -> None:
    assert bool(PRIVATE_IMPORT.search(line)) == is_private


def test_the_private_names_of_torch_are_imported_by_one_module_alone() -> None:
    modules = {path.name for path in PACKAGE.rglob("*.py") if PRIVATE_IMPORT.search(path.read_text())}
    assert modules == {"torch_versions.py"}


def test_no_code_asks_for_the_version_of_torch() -> None:
    asked = re.compile(
        r"TORCH_VERSION_M|TORCH_VERSION_P|torch\.__version__ *[<>=!]|torch\.__version__\.split|Version\(torch"
    )
    files = [*PACKAGE.rglob("*.py"), *CSRC.rglob("*.h"), *CSRC.rglob("*.cpp")]
    assert [path.name for path in files if asked.search(path.read_text())] == []


@pytest.mark.long
def test_what_forked_processes_share_of_torch_is_imported_before() -> None:
    program = (
        "import sys; from torchdion.torch_versions import import_dynamo; before = 'torch._dynamo' in sys.modules\n"
        "import_dynamo(); print(before, 'torch._dynamo' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed == "False True\n"
