"""Arguments, group keys and saved groups of the dion package (microsoft/dion), as this library has them.

docs/guides/migrating.md says what becomes of each; a test holds it to that.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parameter import is_lazy

from torchdion.dtensor import is_dtensor
from torchdion.parameters import tensor_of
from torchdion.plain_values import plain_numbers
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


def named_as_here(group: Group, entries: list[Any], where: str) -> Group:
    """A group, given or saved, with our names.

    Args:
        entries: its tensors or (name, tensor) pairs.

    Raises:
        ValueError: ``split_sizes`` that are not alike or not those of the rows, or what contradicts one of our options.
    """
    group = dict(group)
    for theirs, own in (("nordion2", "dion3"), ("adam", "adamw")):
        if is_one_of(group.get("algorithm"), theirs):
            group["algorithm"] = own
    heads, sizes = group.pop("num_heads", None), group.pop("split_sizes", None)
    if sizes is not None and type(heads) is int and heads == 1:
        heads = None  # which says nothing there
    for name, value, blocks in (
        ("num_heads", heads, _blocks_of_heads(heads, where)),
        ("split_sizes", sizes, _blocks_of_sizes(sizes, entries, where)),
    ):
        if value is not None:
            _refuse_two(group, name, value, "blocks", blocks, where)
            group["blocks"] = blocks
    return group


def check_scope(group: Group, where: str) -> None:
    """Takes ``selection_scope`` out of a group, and raises ValueError for one that is not that of whole matrices."""
    if "selection_scope" in group:
        _only("selection_scope", "global", _WHOLE)(group.pop("selection_scope"), {}, [], where)


def resolve_flatten(group: Group, entries: list[Any], default: Any, where: str) -> None:
    """Gives a group ``batch_dims`` in the place of ``flatten``: the leading dimensions that the package keeps.

    Args:
        entries: the group's tensors or (name, tensor) pairs.
        default: ``flatten`` of groups without one; None: nothing was said.

    Raises:
        ValueError: it is neither True nor False, says something else than ``batch_dims``, or is False where matrices
            of the group differ in their number of dimensions, or have none yet and the group no ``batch_dims``.
    """
    flatten = group.pop("flatten", default)
    if flatten is None:
        return
    if flatten is False and any(map(is_lazy, tensors_of(entries))):
        if group.get("batch_dims") is None:
            raise _lazy("flatten", "batch_dims", where)
        return
    dims = {matrix.dim() for matrix in matrices_of(entries)}
    if not isinstance(flatten, bool) or (not flatten and len(dims) > 1):
        found = f"matrices of {' and '.join(map(str, sorted(dims)))} dimensions" if flatten is False else shown(flatten)
        raise ValueError(
            f"{front()}: flatten must be True, or False of groups whose matrices have as many dimensions, got {found}"
            f"{where}; batch_dims of a group says which of them count matrices"
        )
    batch_dims = 0 if flatten or not dims else dims.pop() - 2
    if group.get("batch_dims") is not None:  # else nothing is said
        _refuse_two(group, "flatten", flatten, "batch_dims", batch_dims, where)
    group["batch_dims"] = batch_dims


def _refuse_two(group: Group, name: str, value: Any, own: str, means: Any, where: str) -> None:
    if own in group and not is_one_of(group[own], means):
        raise ValueError(
            f"{front()}: {name}={shown(value)} means {own}={shown(means)}, got {own}={shown(group[own])} too{where}"
        )


def _lazy(name: str, own: str, where: str) -> ValueError:
    return ValueError(
        f"{front()}: {name} must be of parameters that have a shape, got one of a lazy module{where}; give its group "
        f"{own} in place of it, or run the model once before"
    )


def _blocks_of_heads(heads: Any, where: str) -> int:
    if heads is not None and (not isinstance(heads, int) or isinstance(heads, bool) or heads < 1):
        raise ValueError(f"{front()}: num_heads must be an integer ≥ 1, got {shown(heads)}{where}")
    return heads or 1


def _blocks_of_sizes(sizes: Any, entries: list[Any], where: str) -> int:
    if sizes is None:
        return 1
    counts = plain_numbers(sizes)
    are_counts = isinstance(counts, tuple) and all(type(count) is int and count >= 1 for count in counts)
    if not are_counts or not counts or any(count != counts[0] for count in counts):
        raise ValueError(
            f"{front()}: split_sizes must be integers ≥ 1 that are alike, got {shown(sizes)}{where}; blocks of unequal "
            "sizes are parameters of their own here"
        )
    if any(map(is_lazy, tensors_of(entries))):
        raise _lazy("split_sizes", "blocks", where)
    for tensor in matrices_of(entries):
        if tensor.shape[0] != sum(counts):
            raise ValueError(
                f"{front()}: split_sizes must sum to the rows of each matrix, got {shown(sizes)} for the shape "
                f"{tuple(tensor.shape)}{where}"
            )
    return len(counts)


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


def matrices_of(entries: list[Any]) -> list[Tensor]:
    """The tensors of two or more dimensions; a lazy module's has none before its first input."""
    return [tensor for tensor in tensors_of(entries) if not is_lazy(tensor) and tensor.dim() >= 2]


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
    "use_triton": _nothing,
    "triton_post_ortho": _nothing,
    "verbose": _nothing,
    "power_iters": _only("power_iters", 1, "there is one power iteration"),
    "qr_method": _option("qr_method", "orthonormalize", {"rcqr": "rcqr", "cqr": "cholesky_qr", "qr": "qr"}),
    "cqr_warmup_steps": _nothing,
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
