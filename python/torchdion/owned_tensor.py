"""A state of which each rank has the part that it owns, as a state dict shows it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Size, Tensor


class OwnedTensor(Tensor):
    """A tensor of the whole shape that holds some entries of dimension 0.

    ``torch.distributed.checkpoint`` saves the parts of all ranks as one tensor and loads what a rank owns. It can be
    copied, moved and pickled; no computation takes it.

    Args:
        part: this rank's entries, on whose memory it is a view; those of another rank have no elements where it owns
            nothing.
        shape: of the whole.
        begin: the place of the part's first entry in dimension 0.
    """

    part: Tensor
    begin: int

    @staticmethod
    def __new__(cls, part: Tensor, shape: Sequence[int], begin: int) -> "OwnedTensor":
        whole: OwnedTensor = torch.Tensor._make_wrapper_subclass(cls, Size(shape), dtype=part.dtype, device=part.device)
        whole.part, whole.begin = part, begin
        return whole

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OwnedTensor({self.part!r}, shape={tuple(self.shape)}, begin={self.begin})"

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., "OwnedTensor"], tuple[Any, ...]]:
        return OwnedTensor, (self.part, tuple(self.shape), self.begin)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is _aten.new_empty.default and list(args[1]) == list(args[0].shape):  # async_save() makes room so
            return OwnedTensor(args[0].part.new_empty(args[0].part.shape, **(kwargs or {})), args[1], args[0].begin)
        if function not in _OF_ENTRIES:
            raise RuntimeError(
                f"torchdion: {function} cannot take a state of which this rank has only what it owns; "
                "whole_state_dict() gives whole ones"
            )
        owned = next(arg for arg in args if isinstance(arg, OwnedTensor))
        parts = [_part_like(arg, owned) for arg in args]
        made = function(*parts, **(kwargs or {}))
        return owned if made is owned.part else OwnedTensor(made, owned.shape, owned.begin)

    # What torch.distributed.checkpoint asks of a tensor that is part of a whole (torch.distributed._checkpointable).

    def __create_write_items__(self, fqn: str, _: Any) -> list[Any]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        properties = TensorProperties.create_from_tensor(self.part)
        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.shape),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[Any]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        if self.part.numel() == 0 and self.numel() > 0:
            return []
        offsets = [self.begin, *[0] * (self.dim() - 1)] if self.dim() else []
        return [ChunkStorageMetadata(offsets=Size(offsets), sizes=self.part.shape)]

    def __get_tensor_shard__(self, _: Any) -> Tensor:
        return self.part


def _part_like(arg: Any, owned: OwnedTensor) -> Any:
    """Of an argument of a function entry by entry: those that are where the part is."""
    if isinstance(arg, OwnedTensor):
        if (arg.shape, arg.begin, arg.part.shape) != (owned.shape, owned.begin, owned.part.shape):
            raise RuntimeError("torchdion: two states of which this rank owns different parts cannot be combined")
        return arg.part
    if isinstance(arg, Tensor):
        raise RuntimeError("torchdion: a state of which this rank has a part cannot be combined with a plain tensor")
    return arg


_aten = torch.ops.aten
_OF_ENTRIES = {
    _aten.detach.default,
    _aten.alias.default,
    _aten.clone.default,
    _aten._to_copy.default,
    _aten.copy_.default,
    _aten.empty_like.default,
    _aten.zeros_like.default,
    _aten.zero_.default,
}

torch.serialization.add_safe_globals([OwnedTensor])  # for torch.load(weights_only=True)
