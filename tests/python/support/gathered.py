"""Whole tensors of their pieces, whatever device these lie on."""

from torch import Tensor
from torch.distributed.tensor import DTensor

from torchdion.by_cpu import whole


def gathered(tensor: Tensor) -> Tensor:
    """A copy of the whole of it, on the CPU."""
    return (whole(tensor) if isinstance(tensor, DTensor) else tensor.detach().clone()).cpu()
