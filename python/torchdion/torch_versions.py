"""What torch may move or rename from one version to the next: its private names, which no other module imports.

Versions from 2.10 to 2.15 agree on these. csrc/torch_versions.h is the same for C++.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

from torch._C._distributed_c10d import HashStore, TCPStore
from torch._C._distributed_c10d import _resolve_process_group as resolve_process_group
from torch._compile import _disable_dynamo as disable_dynamo
from torch.distributed import ProcessGroup, distributed_c10d
from torch.distributed.distributed_c10d import GroupName
from torch.export.unflatten import _SubmoduleBase as UnflattenedModule  # whole models and parts of them
from torch.nn.utils.parametrizations import _WeightNorm as WeightNorm

__all__ = [
    "GroupName",
    "HashStore",
    "TCPStore",
    "UnflattenedModule",
    "WeightNorm",
    "disable_dynamo",
    "import_dynamo",
    "naming_groups",
    "one_thread_per_gloo_group",
    "resolve_process_group",
    "timeout_of",
]


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


@cache
def one_thread_per_gloo_group() -> None:
    """Gives one thread, in the place of two, to each gloo group that this process makes from now on.

    In torch 2.10 to 2.15 both threads write the name of what their group has done last to one string, without a lock
    (``ProcessGroupGloo::runLoop``). Where they do so at once and the name is longer than a string holds in itself, as
    is that of the coalesced all-gather that makes a DTensor whole, its memory is freed twice: the process dies of
    SIGABRT or SIGSEGV, then or later, and anywhere. Under one thread collectives of a group wait for each other, which
    a slow network shows.
    """
    gloo: Any = distributed_c10d.ProcessGroupGloo
    make = gloo.__init__

    def make_one(group: Any, store: Any, rank: int, size: int, *, timeout: timedelta, **others: Any) -> None:
        options = gloo._Options()
        interfaces = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
        devices = [gloo.create_device(interface=name) for name in interfaces]
        options._devices = devices or [gloo.create_default_device()]
        options._timeout, options._threads = timeout, 1
        for name, value in others.items():
            setattr(options, name, value)
        make(group, store, rank, size, options)

    gloo.__init__ = make_one
