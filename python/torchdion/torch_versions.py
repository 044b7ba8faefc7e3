"""What torch may move or rename from one version to the next: its private names, which no other module imports.

Versions from 2.10 to 2.15 agree on these. csrc/torch_versions.h is the same for C++.
"""

from torch._C._distributed_c10d import HashStore, TCPStore
from torch._C._distributed_c10d import _resolve_process_group as resolve_process_group
from torch._compile import _disable_dynamo as disable_dynamo
from torch.distributed.distributed_c10d import GroupName

__all__ = ["GroupName", "HashStore", "TCPStore", "disable_dynamo", "resolve_process_group"]
