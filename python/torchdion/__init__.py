"""Dion (distributed orthonormalized updates, arXiv 2504.05295) for PyTorch.

>>> import torch, torchdion
>>> model = torch.nn.Linear(16, 4)
>>> optimizer = torchdion.Dion(torchdion.param_groups(model), lr=0.02)
>>> model(torch.ones(2, 16)).sum().backward()
>>> optimizer.step()
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchdion.installation import check_torch, read_build

build = read_build()
"""The versions of torch, Python, compiler and CUDA toolkit that the library was built with, by name."""
check_torch(build)  # an undefined symbol would say less

from torchdion import _C  # noqa: E402
from torchdion.adamw import AdamW  # noqa: E402
from torchdion.ddp import ddp_comm_hook  # noqa: E402
from torchdion.demo import DeMo  # noqa: E402
from torchdion.dion import Dion  # noqa: E402
from torchdion.dion2 import Dion2  # noqa: E402
from torchdion.dion3 import Dion3  # noqa: E402
from torchdion.dist_adamw import DistAdamW  # noqa: E402
from torchdion.dist_muon import DistMuon  # noqa: E402
from torchdion.double_dion import DoubleDion  # noqa: E402
from torchdion.lion import Lion  # noqa: E402
from torchdion.mixed_precision import DionMixedPrecisionConfig  # noqa: E402
from torchdion.muon import Muon  # noqa: E402
from torchdion.normuon import NorMuon  # noqa: E402
from torchdion.routing import param_groups  # noqa: E402

if TYPE_CHECKING:
    from torchdion.planning.plan import plan

__version__ = build["version"]
cmake_prefix_path = str(Path(__file__).parent / "share" / "cmake")
"""What CMake's ``find_package(torchdion CONFIG)`` needs in ``CMAKE_PREFIX_PATH``."""


def get_include() -> str:
    """The folder of the C++ headers: ``#include <torchdion/torchdion.h>`` with ``-I`` and this."""
    return str(Path(__file__).parent / "include")


if not TYPE_CHECKING:  # a type checker would take it for a sign that any name exists

    def __getattr__(name: str) -> Any:
        if name == "plan":  # whose imports no training needs
            from torchdion.planning.plan import plan

            return plan
        raise AttributeError(f"module 'torchdion' has no attribute {name!r}")


__all__ = [
    "_C",
    "AdamW",
    "DeMo",
    "Dion",
    "Dion2",
    "Dion3",
    "DionMixedPrecisionConfig",
    "DistAdamW",
    "DistMuon",
    "DoubleDion",
    "Lion",
    "Muon",
    "NorMuon",
    "__version__",
    "build",
    "cmake_prefix_path",
    "ddp_comm_hook",
    "get_include",
    "param_groups",
    "plan",
]
