"""What torch may move or rename from one version to the next: its private names, which no other module imports.

Versions from 2.10 to 2.15 agree on these. csrc/torch_versions.h is the same for C++.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore, TCPStore
from torch._C._distributed_c10d import _resolve_process_group as resolve_process_group
from torch._compile import _disable_dynamo as disable_dynamo
from torch.distributed import ProcessGroup, distributed_c10d
from torch.distributed.distributed_c10d import GroupName
from torch.nn.utils.parametrizations import _WeightNorm as WeightNorm

__all__ = [
    "GroupName",
    "HashStore",
    "TCPStore",
    "WeightNorm",
    "disable_dynamo",
    "gradient_dtype",
    "import_dynamo",
    "naming_groups",
    "resolve_process_group",
    "timeout_of",
]


def gradient_dtype(param: Tensor) -> torch.dtype:
    """That autograd gives the gradients of a parameter; not every version lets a program choose it."""
    return getattr(param, "grad_dtype", None) or param.dtype


@contextmanager
def naming_groups(name: str) -> Iterator[None]:
    """Gives this name to the process group that is made in here."""
    given = distributed_c10d._process_group_name
    distributed_c10d._process_group_name = lambda ranks, use_hashed_name: GroupName(name)
    try:
        yield
    finally:
        distributed_c10d._process_group_name = given


def timeout_of(group: ProcessGroup) -> timedelta | None:
    """How long a group's collectives wait; None where its backend does not say."""
    options = getattr(group._get_backend(group._device_types[0]), "options", None)
    return getattr(options, "_timeout", None)


def import_dynamo() -> None:
    """What torch's optimizers import when the first one is made, which takes a second: for a process that forks."""
    import torch._dynamo  # noqa: F401
