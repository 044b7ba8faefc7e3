"""The dtypes of the state: as torch objects for users, by name in groups, so that any unpickler reads a checkpoint."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from torchdion.table import STATE_DTYPES
from torchdion.words import front, shown

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Of parameters, gradients and state."""

_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in DTYPES}


@dataclass(frozen=True)
class DionMixedPrecisionConfig:
    """The dtypes of the optimizer's state, or their names ("bfloat16"); None means the parameter's own.

    Args:
        momentum_dtype: of the momentum M of every algorithm.
        Q_dtype: of Dion's right factor Q.
        variance_dtype: of AdamW's second moment, and of the mean squares of rows of NorMuon and Dion3.
    """

    momentum_dtype: torch.dtype | str | None = None
    Q_dtype: torch.dtype | str | None = None
    variance_dtype: torch.dtype | str | None = None


def state_dtypes(config: Any, where: str) -> dict[str, Any]:
    """A config as keys of a group."""
    config = DionMixedPrecisionConfig() if config is None else config
    if not isinstance(config, DionMixedPrecisionConfig):
        raise ValueError(
            f"{front()}: mixed_precision_config must be None or a torchdion.DionMixedPrecisionConfig, "
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
    for key in dict.fromkeys(STATE_DTYPES.values()):
        if isinstance(group.get(key), torch.dtype):
            group[key] = _NAMES.get(group[key], group[key])


def dtype_of(state: str, param: Tensor, group: dict[str, Any]) -> torch.dtype:
    """The dtype that the named state of a parameter has."""
    key = STATE_DTYPES[state]
    name = group[key] if key else None
    return param.dtype if name is None else getattr(torch, name)
