"""What a step sends: counters equal the formula, which is at most the paper's, and the tensors given to c10d."""

import functools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from law import HYPER, MESHES, gradient, leaf, mesh_of, piece, weight
from long_cases import grid, some_of
from ranks import run_ranks
from roles import ROLES, Role
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

import torchdion
from torchdion import _C
from torchdion.meshes import new_group

MATRICES = [role for role in ROLES if role.is_dion]
OTHERS = [role for role in ROLES if not role.is_dion]
OVERSAMPLE = 1.25
AXES = ("rows", "cols", "replicas")
UNCOUNTED = ("completion", "agreement")  # kinds of collectives


@dataclass
class Call:
    """A collective as the backend gets it: a sum, or the messages that an exchange consists of."""

    name: str
    group: str
    summed: int = 0  # elements
    given: list[int] = field(default_factory=list)  # elements of each message
    taken: list[int] = field(default_factory=list)

    def full(self, kind: str) -> int:
        """The elements of the full tensor: with those that this rank keeps, as many as it gives each of the others when
        all gather its piece, as many as it takes from each when its share is scattered."""
        if self.name == "allreduce_":
            return self.summed
        one, other = (self.given, self.taken) if kind == "reduce_scatter" else (self.taken, self.given)
        assert len(set(other)) <= 1
        return sum(one) + max(other, default=0)


class Listener(TorchDispatchMode):
    """Hears every collective, in C++ too, on its way from the ProcessGroup to the backend."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.exchanges: dict[tuple[str, int], Call] = {}  # by group and tag
        self._hears = True

    def unheard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def quiet(*args: Any, **kwargs: Any) -> Any:
            self._hears = False
            try:
                return function(*args, **kwargs)
            finally:
                self._hears = True

        return quiet

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d" and self._hears:
            name, numel = func._schema.name.removeprefix("c10d::"), args[0][0].numel()
            group = ProcessGroup.unbox(args[1]).group_name
            if name == "allreduce_":
                self.calls.append(Call(name, group, summed=numel))
            else:
                exchange = self._exchange_of(group, args[3])
                {"send": exchange.given, "recv_": exchange.taken}[name].append(numel)
        return func(*args, **(kwargs or {}))

    def _exchange_of(self, group: str, tag: int) -> Call:
        if (group, tag) not in self.exchanges:
            self.exchanges[group, tag] = Call("exchange", group)
            self.calls.append(self.exchanges[group, tag])
        return self.exchanges[group, tag]


class Sent(NamedTuple):
    """By one optimizer on one rank in one step."""

    traffic: dict[str, dict[str, dict[str, int]]]  # as stats() says it
    formula: dict[str, int]  # elements by axis; of the plan
    events: list[dict[str, Any]]  # of the engine's trace: collectives at their issue
    calls: list[Call]
    groups: dict[str, str]  # the axis of each process group
    local: tuple[int, ...]  # this rank's piece of the parameter


def axes_of_groups(mesh: DeviceMesh) -> dict[str, str]:
    return {mesh.get_group(name).group_name: name for name in ("dp", "fs", "tp")}


def local_shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.to_local().shape if isinstance(tensor, DTensor) else tensor.shape)


def one_step(mesh: DeviceMesh, role: Role, options: dict[str, Any]) -> Sent:
    of_params = mesh["fs", "tp"]
    params = [leaf(piece(weight(index, role, torch.float32), role, of_params)) for index in range(role.count)]
    group = {"params": params, **role.options}
    optimizer = torchdion.Dion([group], replicate_mesh=mesh["dp"], **HYPER, **options)
    for index, param in enumerate(params):
        param.grad = piece(gradient(index, role, torch.float32, 0, mesh.get_local_rank("dp")), role, of_params)
    groups = axes_of_groups(mesh)
    with Listener() as listener, mock.patch("torchdion.meshes.new_group", listener.unheard(new_group)):
        # The first one makes groups, whose ranks agree on a name: that is no traffic of a step.
        events = [event for event in _C.trace_of(optimizer.step) if event["what"] == "issue"]
    stats = optimizer.stats()
    return Sent(stats["traffic"], stats["expected_traffic"], events, listener.calls, groups, local_shape(params[0]))


def steps(rank: int, world_size: int, sizes: tuple[int, int, int], cases: list[tuple[Role, dict]]) -> list[Sent]:
    mesh = mesh_of(sizes)
    return [one_step(mesh, role, options) for role, options in cases]


def elements(traffic: dict[str, dict[str, dict[str, int]]], axis: str) -> int:
    """A sum that is scattered and gathered counts once, flags that ranks agree on do not."""
    return sum(kind["elements"] for name, kind in traffic.get(axis, {}).items() if name not in UNCOUNTED)


def axis_of(role: Role, dim: int) -> list[str]:
    """The names that the axis which cuts this dimension of the parameter may have: mesh dimensions of one rank count
    or not."""
    names = [name for name, cut in (("fs", role.fs), ("tp", role.tp)) if cut == dim and not role.plain]
    return list({"_".join(names), *names})


def by_side(role: Role, traffic: dict[str, dict[str, dict[str, int]]]) -> dict[str, int]:
    """Elements over the axes that cut the matrices' rows and columns, and over the replicas."""
    row, col = (1, 0) if role.form["fan_in_first"] else (0, 1)
    first = role.form["batch_dims"]
    sides = {"rows": axis_of(role, first + row), "cols": axis_of(role, first + col), "replicas": ["dp"]}
    return {side: sum(elements(traffic, axis) for axis in axes) for side, axes in sides.items()}


def paper(role: Role, sent: Sent, sizes: tuple[int, int, int], r: int, orientation: str) -> dict[str, int]:
    """Table 2 of arXiv 2504.05295, with this rank's m and n; nothing where an axis has one rank."""
    stack = math.prod(sent.local[: role.form["batch_dims"]]) * role.count
    m, n = (sent.local[role.form["batch_dims"]], math.prod(sent.local[role.form["batch_dims"] + 1 :]))
    if role.form["fan_in_first"]:
        m, n = n, m
    k = math.ceil(OVERSAMPLE * r)
    reduced, inner = (lambda size: (size + 1) * r), (lambda size: 2 * size * r + k * r + r * r)
    left = orientation == "left"
    size = dict(zip(("dp", "fs", "tp"), sizes, strict=True))
    bound = {
        "rows": inner(n) if left else reduced(n),
        "cols": reduced(m) if left else inner(m),
        "replicas": (m + n) * r,
    }
    cut = {side: cuts_side(role, side, size) for side in ("rows", "cols")} | {"replicas": size["dp"] > 1}
    return {side: stack * bound[side] if cut[side] else 0 for side in AXES}


def cuts_side(role: Role, side: str, size: dict[str, int]) -> bool:
    dim = role.form["batch_dims"] + ((side == "cols") != role.form["fan_in_first"])
    return not role.plain and ((role.fs == dim and size["fs"] > 1) or (role.tp == dim and size["tp"] > 1))


def rank_of(role: Role, rank_fraction: float) -> int:
    first = role.form["batch_dims"]
    return math.ceil(rank_fraction * min(role.shape[first], math.prod(role.shape[first + 1 :])) - 1e-9)


def assert_calls_are_the_counted_ones(sent: Sent, itemsize: int) -> None:
    """Every collective was noted at its issue, with the size of its full tensor; the counters are their sums."""
    assert len(sent.calls) == len(sent.events)
    total, wire = Counter(), Counter()
    for call, event in zip(sent.calls, sent.events, strict=True):
        axis, kind = event["axis"], event["kind"]
        assert sent.groups.get(call.group, "fs_tp") == axis
        full = call.full(kind)
        assert (kind in ("all_reduce", "agreement")) == (call.name == "allreduce_")
        assert event["elements"] == full, event
        total[axis, kind] += full if kind not in UNCOUNTED else 0
        wire[axis, kind] += 1
    for axis, kinds in sent.traffic.items():
        for kind, counts in kinds.items():
            assert counts["elements"] == total[axis, kind], (axis, kind)
            assert counts["calls"] == wire[axis, kind], (axis, kind)


def cases(orientation: str, rank_fraction: float) -> list[tuple[Role, dict[str, Any]]]:
    return [
        (role, {"orientation": orientation, "orthonormalize": method, "rank_fraction": rank_fraction})
        for role in MATRICES
        for method in ("auto", "rcqr")
    ]


RANKS = {"compressed": 0.15, "dense": 0.75}  # without replicas there is nothing to send densely
CASES = {
    f"dp{sizes[0]}-fs{sizes[1]}-tp{sizes[2]}-{name}": (sizes, rank_fraction)
    for sizes in MESHES
    for name, rank_fraction in RANKS.items()
    if name == "compressed" or sizes[0] > 1
}


SHORT = ("dp2-fs2-tp2-compressed", "dp2-fs3-tp1-compressed")
LONG = [name for name in CASES if name not in SHORT]


@pytest.mark.parametrize(("case", "orientation"), grid(CASES, {"left": "left", "right": "right"}, long=LONG))
def test_counters_equal_the_formula_the_calls_and_the_paper_at_most(
    case: tuple[tuple[int, int, int], float], orientation: str
) -> None:
    sizes, rank_fraction = case
    asked = cases(orientation, rank_fraction)
    for rank, all_sent in enumerate(run_ranks(steps, math.prod(sizes), sizes, asked)):
        for (role, options), sent in zip(asked, all_sent, strict=True):
            name = f"{role.name} on rank {rank} with {options['orthonormalize']}"
            counted = by_side(role, sent.traffic)
            assert {axis: elements(sent.traffic, axis) for axis in sent.formula} == sent.formula, name
            assert sum(counted.values()) == sum(sent.formula.values()), name
            assert_calls_are_the_counted_ones(sent, 4)
            expected = paper(role, sent, sizes, rank_of(role, rank_fraction), orientation)
            if rank_fraction > 0.5 and expected["replicas"]:
                expected["replicas"] = role.count * math.prod(sent.local)  # the gradient itself
            check_against_paper(name, role, counted, expected, options)


def check_against_paper(
    name: str, role: Role, counted: dict[str, int], expected: dict[str, int], options: dict[str, Any]
) -> None:
    inner, reduced = ("rows", "cols") if options["orientation"] == "left" else ("cols", "rows")
    assert counted[reduced] == expected[reduced], name
    for side in AXES:
        assert counted[side] <= expected[side], f"{name}: {side}"
    if options["orthonormalize"] == "rcqr" and expected[inner]:
        r = rank_of(role, options["rank_fraction"])
        first = role.form["batch_dims"]
        rows_of_P = role.shape[first] if (inner == "rows") != role.form["fan_in_first"] else role.shape[first + 1]
        if rows_of_P > math.ceil(OVERSAMPLE * r):  # else a sketch has as many rows as P
            # Of the paper's Gram matrix only one triangle travels.
            above = r * (r - 1) // 2
            saved = expected[inner] - counted[inner]
            assert saved == 0 if above == 0 else saved > 0 and saved % above == 0, name


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)], ids=str)
def test_what_is_no_matrix_sends_its_gradient_over_the_replicas_and_nothing_else(sizes: tuple[int, int, int]) -> None:
    asked: list[tuple[Role, dict[str, Any]]] = [(role, {}) for role in OTHERS]
    for all_sent in run_ranks(steps, math.prod(sizes), sizes, asked):
        for (role, _), sent in zip(asked, all_sent, strict=True):
            assert_calls_are_the_counted_ones(sent, 4)
            total = {axis: elements(sent.traffic, axis) for axis in sent.traffic}
            own = role.count * functools.reduce(int.__mul__, sent.local, 1) if sizes[0] > 1 else 0
            assert total.pop("dp", 0) == own, role.name
            assert not any(total.values()), role.name


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")
@pytest.mark.parametrize("grad_sync", [True, False])
@pytest.mark.parametrize("sizes", some_of(MESHES, [(2, 2, 2)]))
def test_muons_counters_equal_the_formula_and_the_paper_at_most(sizes: tuple[int, int, int], grad_sync: bool) -> None:
    """mn elements on each axis (arXiv 2504.05295, Table 2)."""
    options = {"replicate_mesh_grad_sync": grad_sync}
    asked = [(replace(role, options=role.options | {"algorithm": "muon"}), options) for role in MATRICES]
    for rank, all_sent in enumerate(run_ranks(steps, math.prod(sizes), sizes, asked)):
        for (role, _), sent in zip(asked, all_sent, strict=True):
            name = f"{role.name} on rank {rank}"
            assert {axis: elements(sent.traffic, axis) for axis in sent.formula} == sent.formula, name
            assert all(count <= role.count * math.prod(role.shape) for count in sent.formula.values()), name
            assert not role.plain or sum(sent.formula.values()) > 0 or sizes[0] == 1, name
