"""torchtitan's trainer on CPUs, over gloo: python titan_on_cpu.py, with the arguments of torchtitan.train.

What torchtitan 0.3.0 does on GPUs alone is replaced before it is imported; optimizers, FSDP2 and checkpoints are not.
"""

from types import SimpleNamespace
from typing import Any

import torch
import torch._utils
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention.flex_attention import BlockMask, create_mask
from torch.nn.functional import scaled_dot_product_attention


def pretend_to_count_memory() -> None:
    """torch.cpu has no statistics of memory, which torchtitan logs."""
    torch._utils._get_available_device_type = lambda: "cpu"
    memory = {
        "get_device_name": lambda device: "CPU",
        "get_device_properties": lambda device: SimpleNamespace(total_memory=2**34),
        "reset_peak_memory_stats": lambda: None,
        "empty_cache": lambda: None,
        "memory_stats": lambda device: {},
    }
    for name, function in memory.items():
        setattr(torch.cpu, name, function)


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, *, block_mask: BlockMask, scale: float | None, enable_gqa: bool, **_: Any
) -> tuple[Tensor, Any]:
    """FlexAttention has no backward pass on CPUs."""
    mask = create_mask(block_mask.mask_mod, len(q), 1, q.shape[2], k.shape[2], device="cpu")
    return scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=enable_gqa), SimpleNamespace(lse=None)


def sum_gradients(model: nn.Module) -> None:
    """Of all ranks, undivided; torchtitan's way to that is a reduction that gloo does not have."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


if __name__ == "__main__":
    pretend_to_count_memory()
    import torchtitan.distributed.fsdp
    import torchtitan.distributed.utils
    from torchtitan.models.common.attention import FlexAttention
    from torchtitan.train import main

    FlexAttention._compiled_flex_attn = staticmethod(dense_attention)
    torchtitan.distributed.fsdp.disable_fsdp_gradient_division = sum_gradients
    torchtitan.distributed.utils.set_pg_timeouts = lambda timeout, parallel_dims: None
    main()
