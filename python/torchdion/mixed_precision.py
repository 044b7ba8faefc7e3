"""The dtypes of the state: as torch objects for users, by name in groups, so that any unpickler reads a checkpoint."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from torchdion.words import shown

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Of parameters, gradients and state."""

STATE_DTYPES = {"momentum": "momentum_dtype", "Q": "Q_dtype", "variance": "variance_dtype"}
"""The group key that gives the dtype of each state."""

_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in DTYPES}


def stored_as(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A copy of a state. A finite number beyond the range of the dtype becomes its largest, as steps store it.

    >>> stored_as(torch.tensor([1e6, -1e6, torch.inf]), torch.float16, torch.device("cpu")).tolist()
    [65504.0, -65504.0, inf]
    >>> stored_as(torch.tensor(1e39, dtype=torch.float64), torch.float32, torch.device("cpu")).isfinite()
    tensor(True)
    """
    largest = torch.finfo(dtype).max
    if largest < torch.finfo(tensor.dtype).max:
        tensor = torch.where(tensor.isinf(), tensor, tensor.clamp(-largest, largest))
    return tensor.to(device, dtype, copy=True)


@dataclass(frozen=True)
class DionMixedPrecisionConfig:
    """The dtypes of the optimizer's state, or their names ("bfloat16"); None means the parameter's own.

    Args:
        momentum_dtype: of the momentum M of every algorithm.
        Q_dtype: of Dion's right factor Q.
        variance_dtype: of AdamW's second moment.
    """

    momentum_dtype: torch.dtype | str | None = None
    Q_dtype: torch.dtype | str | None = None
    variance_dtype: torch.dtype | str | None = None


def is_state_dtype(value: Any) -> bool:
    return value is None or (isinstance(value, (str, torch.dtype)) and value in (*DTYPES, *_NAMES.values()))


def state_dtypes(config: Any, where: str) -> dict[str, Any]:
    """A config as keys of a group."""
    if config is None:
        return asdict(DionMixedPrecisionConfig())
    if not isinstance(config, DionMixedPrecisionConfig):
        raise ValueError(
            "torchdion.Dion: mixed_precision_config must be None or a torchdion.DionMixedPrecisionConfig, "
            f"got {shown(config)}{where}"
        )
    return asdict(config)


def name_dtypes(group: dict[str, Any]) -> None:
    """Replaces the dtypes of a group by their names: LibTorch's unpickler does not know the objects.

    What no state can have stays as it is, for check_options() to refuse.

    >>> group = {"Q_dtype": torch.bfloat16}
    >>> name_dtypes(group)
    >>> group
    {'Q_dtype': 'bfloat16'}
    """
    for key in STATE_DTYPES.values():
        if isinstance(group.get(key), torch.dtype):
            group[key] = _NAMES.get(group[key], group[key])


def dtype_of(state: str, param: Tensor, group: dict[str, Any]) -> torch.dtype:
    """The dtype that the named state of a parameter has."""
    name = group[STATE_DTYPES[state]]
    return param.dtype if name is None else getattr(torch, name)
