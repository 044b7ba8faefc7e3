"""The pybind11 module of csrc/bindings/module.cpp: what the Python front calls."""

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

class Nonfinite(_Enum):
    # and "raise", which Python reserves: Nonfinite.__members__["raise"]
    __members__: ClassVar[dict[str, Nonfinite]]  # type: ignore[assignment]
    propagate: ClassVar[Nonfinite]
    zero: ClassVar[Nonfinite]
    skip_step: ClassVar[Nonfinite]

class GroupOptions:
    """The options of a group, checked: what a :class:`Groups` is given."""

    def __init__(self, group: dict[str, Any], where: str) -> None: ...

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
        pieces: Sequence[int] = (),
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
    @property
    def group(self) -> ProcessGroup: ...
    def set_in_flight_group(self, group: ProcessGroup) -> None: ...
    def piece(self, length: int, rank: int | None = None) -> tuple[int, int]: ...
    def traffic(self) -> dict[str, dict[str, int]]: ...

class Layout:
    def __init__(
        self,
        *,
        rows: Axis = ...,
        cols: Axis = ...,
        replicas: Axis = ...,
        copies: Axis = ...,
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
    def copies(self) -> Axis: ...
    @property
    def batch(self) -> Axis: ...
    @property
    def sizes(self) -> list[int]: ...
    @property
    def has_averaged_copies(self) -> bool: ...
    @property
    def is_local(self) -> bool: ...

class Groups:
    """Parameters by group and algorithm, with gradients, states and layouts: equally long lists."""

    def __init__(self, capturable: bool = False) -> None: ...
    def add(
        self,
        algorithm: str,
        options: GroupOptions,
        X: Sequence[Tensor],
        G: Sequence[Tensor],
        states: Sequence[Sequence[Tensor]],
        steps: Sequence[Tensor],
        layouts: Sequence[Layout] = ...,
        whole_factors: Sequence[Sequence[Sequence[int]]] = ...,
        shares: Sequence[Sequence[int]] = ...,
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

class InFlight:
    """What a step has left under way."""

    def wait(self) -> Report: ...
    @property
    def batches(self) -> int: ...
    @property
    def completed(self) -> int: ...

class Step:
    def __init__(
        self,
        groups: Groups,
        nonfinite: Nonfinite,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None: ...
    def run(self) -> Report: ...
    def axes_without_group(self) -> list[Axis]: ...
    def take_in_flight(self) -> InFlight | None: ...
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
    whole_state_dict: ClassVar[Operation]

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

class Held:
    """What this rank has of a parameter that others have too: states are (name, dtype, whole sizes)."""

    def __init__(
        self,
        *,
        name: str,
        group: int,
        sizes: Sequence[int],
        dtype: dtype,
        device: str,
        layout: str,
        requires_grad: bool,
        steps: float | None,
        states: Sequence[tuple[str, dtype, Sequence[int]]],
        axes: Sequence[Axis],
        gradient: dtype | None = None,
        shared: Sequence[Axis] = (),
    ) -> None: ...

def claims_of(
    held: Sequence[Held],
    groups: Sequence[GroupOptions],
    optimizer: Sequence[tuple[str, str]],
    operation: Operation,
) -> list[Claim]: ...
def agree(
    operation: Operation,
    refuses: bool,
    claims: Sequence[Claim],
    provide: Callable[[list[dtype | None]], object] | None = None,
    *,
    compares: bool = False,
    copies: Callable[[], list[tuple[int, Axis, int]]] | None = None,
) -> list[bool]: ...
def sentence_of_apart(names: Sequence[str]) -> str: ...
def average(tensor: Tensor, axis: Axis) -> None: ...
def digest_of(tensor: Tensor) -> int: ...
def differing(tensors: Sequence[Tensor], axis: Axis) -> list[bool]: ...
def copy_from_first(tensor: Tensor, axis: Axis) -> None: ...
def gather_pieces(piece: Tensor, dim: int, length: int, axis: Axis) -> Tensor: ...

# The table of csrc/algorithms, and rules that are read from it. Parameters are given by their whole sizes.

def options() -> list[dict[str, Any]]: ...
def algorithms() -> list[dict[str, Any]]: ...
def check_options(group: dict[str, Any], where: str) -> None: ...
def algorithm_of(dims: int, algorithm: str, scalar_algorithm: str, batch_dims: int) -> str: ...
def matrix_sizes(sizes: Sequence[int], options: GroupOptions) -> list[int]: ...
def whole_state_sizes(algorithm: str, name: str, sizes: Sequence[int], options: GroupOptions) -> list[int]: ...
def piece_of_state_sizes(
    algorithm: str, name: str, sizes: Sequence[int], local: Sequence[int], options: GroupOptions, layout: Layout
) -> list[int]: ...
def start_of(
    algorithm: str,
    name: str,
    sizes: Sequence[int],
    local: Sequence[int],
    options: GroupOptions,
    parameter: int,
    dtype: dtype,
    device: device,
    layout: Layout,
) -> Tensor: ...
def resized_factor(algorithm: str, name: str, Q: Tensor, r: int, seed: int, parameter: int) -> Tensor: ...
def shares_of(
    parameters: Sequence[tuple[int, Sequence[int]]], options: Sequence[GroupOptions], axis: Axis
) -> list[list[int]]: ...
def owned_sizes(state: Sequence[int], parameter: Sequence[int], axis: Axis, shares: Sequence[int]) -> list[int]: ...
def owned_part(state: Tensor, parameter: Sequence[int], axis: Axis, shares: Sequence[int]) -> Tensor: ...
def gather_owned(
    part: Tensor, state: Sequence[int], parameter: Sequence[int], axis: Axis, shares: Sequence[int]
) -> Tensor: ...
def stored_as(state: Tensor, dtype: dtype, device: device) -> Tensor: ...
def check_state_names(algorithm: str, names: Sequence[str], sizes: Sequence[int], name: str) -> None: ...
def check_blocks(rows: int, blocks: int, whose: str) -> None: ...
def check_loaded_tensor(tensor: Tensor, state: str, name: str) -> None: ...
def check_loaded_sizes(
    algorithm: str, state: str, loaded: Sequence[int], sizes: Sequence[int], options: GroupOptions, name: str
) -> None: ...
def check_loaded_step(count: float, got: str, name: str) -> None: ...
def check_cut(dim: int, sizes: Sequence[int], options: GroupOptions, name: str) -> None: ...
def check_layout(
    algorithm: str,
    sizes: Sequence[int],
    factors: Sequence[Sequence[int]],
    options: GroupOptions,
    layout: Layout,
    name: str,
) -> None: ...
def cuts_of_parameter(dims: int, options: GroupOptions) -> dict[str, int]: ...
def cuts_of_state(
    algorithm: str, name: str, sizes: Sequence[int], parameter: Sequence[int], options: GroupOptions
) -> dict[str, int]: ...
def decoupled_states(
    algorithm: str, sizes: Sequence[int], ranks: Sequence[int], options: GroupOptions, layout: Layout
) -> list[str]: ...
def costs(groups: Groups) -> list[dict[str, Any]]: ...
def expected_traffic(groups: Groups) -> dict[str, int]: ...
def front() -> str: ...
def exchange_front(called: str) -> str: ...
def start_trace() -> None: ...
def take_trace() -> list[dict[str, str | int]]: ...
def launches_of(step: Callable[[], object], device_type: str = "cuda") -> list[dict[str, Any]]: ...
def has_memory(tensor: Tensor) -> bool: ...
def has_kernels_for(device_type: str, /) -> bool: ...

class Layer:
    other: ClassVar[Layer]
    linear: ClassVar[Layer]
    embedding: ClassVar[Layer]
    embedding_bag: ClassVar[Layer]
    convolution: ClassVar[Layer]
    transposed_convolution: ClassVar[Layer]
    attention: ClassVar[Layer]
    normalization: ClassVar[Layer]

class ModelModule:
    shown_weight: int
    experts: int
    gate_up_proj: list[int]
    down_proj: list[int]
    is_transposed: bool
    is_concatenated: bool
    def __init__(self, *, name: str, class_name: str, layer: Layer, width: int = 0) -> None: ...

class ModelParameter:
    def __init__(
        self,
        *,
        owner: int,
        key: str,
        name: str,
        id: int,
        sizes: Sequence[int],
        is_trained: bool,
        cut_dims: Sequence[int] = (),
    ) -> None: ...

def is_doubtful_kernel(sizes: Sequence[int]) -> bool: ...
def route(
    modules: Sequence[ModelModule],
    parameters: Sequence[ModelParameter],
    declared: Sequence[int],
    absent: Sequence[str],
    heads: Sequence[str] | None,
    strict: bool,
) -> tuple[list[tuple[str, dict[str, Any], list[int]]], list[str]]: ...
