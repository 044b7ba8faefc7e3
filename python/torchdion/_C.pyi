"""The pybind11 module of csrc/bindings.cpp: what the Python front calls."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, dtype

class _Enum:
    __members__: ClassVar[dict[str, _Enum]]
    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class Orientation(_Enum):
    __members__: ClassVar[dict[str, Orientation]]  # type: ignore[assignment]
    right: ClassVar[Orientation]
    left: ClassVar[Orientation]

class Orthonormalize(_Enum):
    __members__: ClassVar[dict[str, Orthonormalize]]  # type: ignore[assignment]
    auto: ClassVar[Orthonormalize]
    rcqr: ClassVar[Orthonormalize]
    cholesky_qr: ClassVar[Orthonormalize]
    qr: ClassVar[Orthonormalize]

class Nonfinite(_Enum):
    # and "raise", which Python reserves: Nonfinite.__members__["raise"]
    __members__: ClassVar[dict[str, Nonfinite]]  # type: ignore[assignment]
    propagate: ClassVar[Nonfinite]
    zero: ClassVar[Nonfinite]
    skip_step: ClassVar[Nonfinite]

class DionHyperparameters:
    def __init__(
        self,
        *,
        lr: float,
        mu: float,
        weight_decay: float,
        maximize: bool,
        orthonormalize: Orthonormalize,
        rcqr_oversample: float,
        seed: int,
    ) -> None: ...

class LionHyperparameters:
    def __init__(self, *, lr: float, beta1: float, beta2: float, weight_decay: float, maximize: bool) -> None: ...

class AdamWHyperparameters:
    def __init__(
        self, *, lr: float, beta1: float, beta2: float, weight_decay: float, epsilon: float, maximize: bool
    ) -> None: ...

class Groups:
    """Each method takes equally long lists of tensors, then what its parameters share."""

    def __init__(self) -> None: ...
    def add_dion(
        self, *X_G_M_Q_steps_hyper_form: Sequence[Tensor] | DionHyperparameters | int | Orientation
    ) -> None: ...
    def add_lion(self, *X_G_M_steps_hyper: Sequence[Tensor] | LionHyperparameters) -> None: ...
    def add_adamw(self, *X_G_M_V_steps_hyper: Sequence[Tensor] | AdamWHyperparameters) -> None: ...

class Report:
    @property
    def skipped(self) -> bool: ...
    @property
    def nonfinite(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...

class Step:
    def __init__(
        self,
        groups: Groups,
        nonfinite: Nonfinite,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None: ...
    def run(self) -> Report: ...
    @property
    def wrote(self) -> bool: ...
    @property
    def batches(self) -> int: ...
    @property
    def completed(self) -> int: ...

def matrix_sizes(sizes: Sequence[int], batch_dims: int, blocks: int, fan_in_first: bool, /) -> list[int]: ...
def rank_of(m: int, n: int, rank_fraction: float, rank_multiple_of: int, /) -> int: ...
def start_of_Q(
    sizes: Sequence[int],
    batch_dims: int,
    blocks: int,
    fan_in_first: bool,
    orientation: Orientation,
    rank_fraction: float,
    rank_multiple_of: int,
    seed: int,
    parameter: int,
    dtype: dtype,
    /,
) -> Tensor: ...
