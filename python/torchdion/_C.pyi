"""The pybind11 module of csrc/bindings.cpp: what the Python front calls."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, overload

from torch import Tensor, device, dtype
from torch.distributed import ProcessGroup

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

class Precision(_Enum):
    __members__: ClassVar[dict[str, Precision]]  # type: ignore[assignment]
    highest: ClassVar[Precision]
    high: ClassVar[Precision]
    medium: ClassVar[Precision]

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
        precision: Precision = ...,
    ) -> None: ...

class LionHyperparameters:
    def __init__(self, *, lr: float, beta1: float, beta2: float, weight_decay: float, maximize: bool) -> None: ...

class AdamWHyperparameters:
    def __init__(
        self, *, lr: float, beta1: float, beta2: float, weight_decay: float, epsilon: float, maximize: bool
    ) -> None: ...

class Axis:
    @overload
    def __init__(self) -> None: ...
    @overload
    def __init__(
        self,
        group: ProcessGroup,
        *,
        name: str = "",
        chunks: Sequence[int] = (),
        places: Sequence[int] = (),
        real_when_alone: bool = False,
    ) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def absent(self) -> bool: ...
    def piece(self, length: int, rank: int | None = None) -> tuple[int, int]: ...
    def traffic(self) -> dict[str, dict[str, int]]: ...

class Layout:
    def __init__(
        self,
        *,
        rows: Axis = ...,
        cols: Axis = ...,
        replicas: Axis = ...,
        batch: Axis = ...,
        sizes: Sequence[int] = (),
        has_averaged_copies: bool = False,
    ) -> None: ...
    @property
    def rows(self) -> Axis: ...
    @property
    def cols(self) -> Axis: ...
    @property
    def replicas(self) -> Axis: ...
    @property
    def batch(self) -> Axis: ...
    @property
    def sizes(self) -> list[int]: ...
    @property
    def has_averaged_copies(self) -> bool: ...
    @property
    def is_local(self) -> bool: ...

class Multipliers:
    """Of the hyperparameters of these names, each one number on the parameters' device."""

    def __init__(self, lr: Tensor | None = None, weight_decay: Tensor | None = None) -> None: ...

class Groups:
    """Each method takes equally long lists of tensors, then what its parameters share, then their layouts.

    Empty where every parameter is whole: the list of layouts, and that of the sizes of the whole Qs.
    """

    def __init__(self, capturable: bool = False) -> None: ...
    def add_dion(
        self,
        *X_G_M_Q_steps_hyper_form_layouts_whole_Q_multipliers_skip: Sequence[Tensor]
        | DionHyperparameters
        | int
        | Orientation
        | Sequence[Layout]
        | Sequence[list[int]]
        | Multipliers,
    ) -> None: ...
    def add_lion(
        self,
        *X_G_M_steps_hyper_layouts_multipliers: Sequence[Tensor] | LionHyperparameters | Sequence[Layout] | Multipliers,
    ) -> None: ...
    def add_adamw(
        self,
        *X_G_M_V_steps_hyper_layouts_multipliers: Sequence[Tensor]
        | AdamWHyperparameters
        | Sequence[Layout]
        | Multipliers,
    ) -> None: ...

class Report:
    @property
    def skipped(self) -> bool | Tensor: ...
    @property
    def nonfinite(self) -> int | Tensor: ...
    @property
    def without_signal(self) -> int | Tensor: ...
    @property
    def in_margin(self) -> int | Tensor: ...
    @property
    def batches(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def expected_traffic(self) -> dict[str, int]: ...

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

class Operation(_Enum):
    __members__: ClassVar[dict[str, Operation]]  # type: ignore[assignment]
    step: ClassVar[Operation]
    resize_rank: ClassVar[Operation]
    synchronize_for_checkpoint: ClassVar[Operation]
    check_replicas: ClassVar[Operation]
    synchronize_replicas: ClassVar[Operation]

class Claim:
    def __init__(
        self,
        name: str,
        properties: Sequence[tuple[str, str]],
        axes: Sequence[Axis],
        *,
        is_parameter: bool = True,
        gradient: dtype | None = None,
        shared: Sequence[Axis] = (),
    ) -> None: ...

def agree(
    operation: Operation,
    refuses: bool,
    claims: Sequence[Claim],
    provide: Callable[[list[dtype | None]], object] | None = None,
) -> list[dtype | None]: ...
def start_trace() -> None: ...
def take_trace() -> list[dict[str, str | int]]: ...
def launches_of(step: Callable[[], object], device_type: str = "cuda") -> list[dict[str, Any]]: ...
def compresses(m: int, n: int, r: int, layout: Layout) -> bool: ...
def traffic(
    m: int,
    n: int,
    r: int,
    layout: Layout,
    *,
    orientation: Orientation = ...,
    orthonormalize: Orthonormalize = ...,
    rcqr_oversample: float = 1.25,
    dtype: dtype = ...,
    count: int = 1,
    dealt: int = 0,
) -> dict[str, int]: ...
def has_memory(tensor: Tensor) -> bool: ...
def has_kernels_for(device_type: str, /) -> bool: ...
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
    device: device,
    layout: Layout,
    /,
) -> Tensor: ...
def resized_Q(Q: Tensor, r: int, seed: int, parameter: int) -> Tensor: ...
def gather_pieces(piece: Tensor, dim: int, length: int, axis: Axis) -> Tensor: ...
