"""Arguments, group keys and saved groups of the dion package (microsoft/dion), as this library has them.

docs/guides/migrating.md says what becomes of each; a test holds it to that.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parameter import is_lazy

from torchdion import _C
from torchdion.dtensor import is_dtensor
from torchdion.mixed_precision import state_dtypes
from torchdion.parameters import tensor_of
from torchdion.table import OPTIONS, Group
from torchdion.words import front, shown

Arguments = dict[str, Any]
"""What a constructor is given."""


def ours(given: Arguments, params: list[Any], algorithm: str) -> Arguments:
    """The arguments of a constructor, where those that only the dion package has are replaced by ours.

    Args:
        given: all of them, and ``unknown`` ones, of which those of the package are taken out.
        params: tensors, (name, tensor) pairs or groups.

    Raises:
        ValueError: a value that has no equal here, or an argument beside one of ours that says the same.
    """
    given, unknown = dict(given), dict(given["unknown"])
    for name, translate in _ARGUMENTS.items():
        if name in unknown and algorithm in _ALGORITHMS_OF[name]:
            given |= translate(unknown.pop(name), given, params)
    return {**given, "unknown": unknown}


KEYS = ("num_heads", "split_sizes", "flatten", "selection_scope")
"""Keys of groups that are translated and removed."""


def named_as_here(group: Group, entries: list[Any], flatten: Any, where: str) -> Group:
    """A group with our names, see csrc/others/saved_groups.h.

    Args:
        entries: its tensors or (name, tensor) pairs.
        flatten: of groups without one; None: nothing was said.

    Raises:
        ValueError: a value that has no equal here, or what contradicts one of our options.
    """
    group = {"flatten": flatten, **group}
    if "selection_scope" in group:
        _only("selection_scope", "global", _WHOLE)(group.pop("selection_scope"), {}, [], where)
    shapes = shapes_of(group, entries, group.get("batch_dims"), where)
    _C.GroupKeys.rename_dion_package(group, shapes, where)
    if "mixed_precision_config" in group:
        group |= state_dtypes(group.pop("mixed_precision_config"), where)
    return group


def shapes_of(group: Group, entries: list[Any], batch_dims: Any, where: str) -> list[list[int]]:
    """The sizes of a group's tensors, by which keys of the package are read.

    Args:
        group: loses ``flatten`` where only tensors without a shape could tell what it means.
        batch_dims: which say the same as ``flatten=False``; None: there are none.

    Raises:
        ValueError: a key needs the shape of a lazy module's parameter, which has none before its first input.
    """
    tensors = tensors_of(entries)
    if any(map(is_lazy, tensors)):
        if group.get("split_sizes") is not None:
            raise _lazy("split_sizes", "blocks", where)
        if group.get("flatten") is False:
            if batch_dims is None:
                raise _lazy("flatten", "batch_dims", where)
            del group["flatten"]
    return [list(tensor.shape) for tensor in tensors if not is_lazy(tensor) and not tensor.is_nested]


def _lazy(name: str, own: str, where: str) -> ValueError:
    return ValueError(
        f"{front()}: {name} must be of parameters that have a shape, got one of a lazy module{where}; give its group "
        f"{own} in place of it, or run the model once before"
    )


def _mesh(mesh: Any, given: Arguments, params: list[Any]) -> Arguments:
    """Of DTensors, the shards, which they name themselves; of plain tensors, processes whose gradients are averaged."""
    if mesh is None:
        return {}
    if not is_mesh(mesh):
        raise ValueError(
            f"{front()}: distributed_mesh must be None, a DeviceMesh or a ProcessGroup, got {type(mesh).__name__}"
        )
    if isinstance(mesh, DeviceMesh) and any(is_dtensor(tensor) for tensor in tensors_of(params)):
        means: Arguments = {"outer_shard_mesh": mesh}
    else:
        means = {"replicate_mesh": mesh, "replicate_mesh_grad_sync": False}
    own = next(iter(means))
    if given[own] is not None:
        raise ValueError(f"{front()}: distributed_mesh means {own} here, got both")
    return means


def is_one_of(value: Any, *others: Any) -> bool:
    """Whether they are texts or numbers, or None, and equal; others are not asked whether they are."""
    plain = (str, int, float, type(None))
    return isinstance(value, plain) and any(isinstance(other, plain) and value == other for other in others)


def mesh_argument(algorithm: str) -> str:
    """The keyword that the second argument of the package's class is here."""
    return "distributed_mesh" if algorithm in _ALGORITHMS_OF["distributed_mesh"] else "replicate_mesh"


def is_mesh(value: Any) -> bool:
    return isinstance(value, (DeviceMesh, ProcessGroup))


def tensors_of(params: list[Any]) -> list[Tensor]:
    """The tensors among what a constructor or a group is given, whatever else is there."""
    found: list[Tensor] = []
    for entry in params:
        members = entry.get("params", ()) if isinstance(entry, dict) else (entry,)
        members = (members,) if isinstance(members, Tensor) else members
        tensors = map(tensor_of, members if isinstance(members, (list, tuple)) else ())
        found += [tensor for tensor in tensors if isinstance(tensor, Tensor)]
    return found


def _nothing(value: Any, given: Arguments, params: list[Any]) -> Arguments:
    return {}


def _option(theirs: str, own: str, means: dict[Any, Any], advice: str = "") -> Callable[..., Arguments]:
    """An argument whose few values are those of one of our options.

    Args:
        means: by its value, what it means, or a tuple of that and of what else may be beside it.
        advice: what follows the sentence that refuses other values.
    """

    def translate(value: Any, given: Arguments, params: list[Any]) -> Arguments:
        known = [each for each in means if type(each) is type(value) and is_one_of(value, each)]
        if not known:
            choices = " or ".join(map(shown, means))
            raise ValueError(f"{front()}: {theirs} must be {choices}, got {shown(value)}{advice and f': {advice}'}")
        meant = means[known[0]]
        meant, *others = meant if isinstance(meant, tuple) else (meant,)
        if is_one_of(given[own], *others):
            return {}
        if not is_one_of(given[own], OPTIONS[own]["default"], meant):
            raise ValueError(
                f"{front()}: {theirs}={shown(value)} means {own}={shown(meant)}, got {own}={shown(given[own])} too"
            )
        return {own: meant}

    return translate


def _only(name: str, allowed: Any, advice: str) -> Callable[..., Arguments]:
    def translate(value: Any, given: Arguments, params: list[Any], where: str = "") -> Arguments:
        if type(value) is not type(allowed) or not is_one_of(value, allowed):
            raise ValueError(f"{front()}: {name} must be {shown(allowed)}, got {shown(value)}{where}: {advice}")
        return {}

    return translate


def _decay(mu: Any, given: Arguments, params: list[Any]) -> Arguments:
    if not is_one_of(given["ef_decay"], OPTIONS["ef_decay"]["default"], mu):
        raise ValueError(f"{front()}: mu means ef_decay here, got {shown(mu)} and {shown(given['ef_decay'])}")
    return {"ef_decay": mu}


_WHOLE = "slices are chosen of whole matrices on every layout"

_ARGUMENTS: dict[str, Callable[[Any, Arguments, list[Any]], Arguments]] = {
    "distributed_mesh": _mesh,
    "mu": _decay,
    "use_polar_express": _option(
        "use_polar_express",
        "newton_schulz",
        {True: ("polar_express", "auto", "gram")},
        "the five polynomials that are meant by False are not here",
    ),
    "use_gram_newton_schulz": _option(
        "use_gram_newton_schulz", "newton_schulz", {True: "gram", False: ("polar_express", "jordan")}
    ),
    "newton_schulz_func": _only("newton_schulz_func", None, "newton_schulz names the iterations that there are"),
    "flatten": lambda flatten, given, params: {"flatten": flatten},
    "selection_scope": _only("selection_scope", "global", _WHOLE),
    **dict.fromkeys(("use_triton", "triton_post_ortho", "verbose", "cqr_warmup_steps"), _nothing),
    "power_iters": _only("power_iters", 1, "there is one power iteration"),
    "qr_method": _option("qr_method", "orthonormalize", {"rcqr": "rcqr", "cqr": "cholesky_qr", "qr": "qr"}),
}
"""What becomes of each."""

_OF_ITERATIONS = ("muon", "normuon", "dion2", "dion3")
_ALGORITHMS_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_ARGUMENTS, _OF_ITERATIONS),
    **dict.fromkeys(("selection_scope", "triton_post_ortho"), ("dion2", "dion3")),
    "verbose": ("dion2",),
    "mu": ("dion3",),
    **dict.fromkeys(("power_iters", "qr_method", "cqr_warmup_steps"), ("dion",)),
}
