"""What an optimizer that averages over replicas does for them besides stepping."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from torchdion import _C
from torchdion.agreement import Prepared, Shared, begin
from torchdion.dtensor import local_part
from torchdion.in_flight import InFlightOptimizer
from torchdion.layouts import Layouts
from torchdion.parameters import is_left_alone, name_of
from torchdion.state import check_keys, is_begun
from torchdion.table import STATE_DTYPES, algorithm_of, options_of
from torchdion.warning import warn
from torchdion.words import front, speaking
from torchdion.wrappers import Writes, is_freed, readable
from torchdion.written_keys import Snapshot


class ReplicatedOptimizer(InFlightOptimizer):
    """Replicas of ``replicate_mesh`` hold the same weights and states to the last bit, with one exception.

    A matrix that is compressed, because (m + n) r < m n, has a *decoupled* momentum: each replica's own. The mean over
    the replicas is the momentum of a run on one process (arXiv 2504.05295, Theorem 4.1).
    """

    _layouts: Layouts
    _snapshots: list[Snapshot]
    _decoupled = False  # a step may have taken momenta apart since they were equal
    _decoupled_as: tuple[dict[str, Any], ...] = ()  # what says, in each group, which: as the last step had it
    _steps_when_equal = 0.0  # of all parameters together

    @speaking
    def synchronize_for_checkpoint(self) -> None:
        """Replaces decoupled momenta by their mean, which is what a checkpoint must hold.

        To be called on every rank, whichever of them saves: each waits for the others of ``replicate_mesh``, also where
        there is nothing to replace. The training goes on as if it had not been called, up to rounding. Without a
        ``replicate_mesh`` it does nothing.

        Raises:
            ValueError: an option or a state that no step would take, or ranks differ in them; nothing was changed.
            RuntimeError: another rank refused, or does something else; nothing was changed.
        """
        group = replica_group(self)
        if group is None:
            return self._refuse_if_broken()

        def prepare() -> list[Tensor]:
            self._refuse_if_broken()
            return list(decoupled_momenta(self))

        self._average(begin(self, self._layouts, _C.Operation.synchronize_for_checkpoint, prepare))

    def _average(self, momenta: list[Tensor]) -> None:
        """Of :func:`decoupled_momenta`, as all ranks have agreed to do."""
        if self._may_be_decoupled():
            with torch.no_grad():
                for momentum in momenta:
                    _C.average(momentum, self._layouts.axes.replicas)
            self._momenta_are_equal()

    @speaking
    def check_replicas(self, group: ProcessGroup | None = None) -> None:
        """Compares the bytes of replicas, by hashes: of weights and of all states but decoupled momenta.

        To be called on every rank. Replicas part when they run on unequal hardware, libraries or numbers of threads.

        Args:
            group: the ranks that hold copies; None: those of ``replicate_mesh``.

        Raises:
            RuntimeError: replicas differ; the sentence names the parameters. Raised on all ranks of the group. Or
                another rank refused, or does something else.
            ValueError: no group is given, and the optimizer has no ``replicate_mesh``; an option or a state is one that
                no step would take; or ranks differ in more than bytes, say in options, shapes or steps taken.
        """

        def prepare() -> list[tuple[str, Tensor]]:
            self._flush()
            return _common(self, readable)

        named, copies = self._begin(_C.Operation.check_replicas, group, prepare)
        different = _C.differing([tensor for _, tensor in named], copies)
        names = dict.fromkeys(name for (name, _), differs in zip(named, different, strict=True) if differs)
        if names:
            raise RuntimeError(
                f"{front()}: replicas differ in {', '.join(names)}; synchronize_replicas() makes them equal"
            )

    @speaking
    def synchronize_replicas(self, group: ProcessGroup | None = None) -> None:
        """Gives all replicas the weights and states of the first; decoupled momenta stay as they are.

        To be called on every rank. Before the first backward pass it makes replicas start alike that were seeded
        differently. The first step does so too, and warns, where the optimizer keeps them equal.

        Args:
            group: the ranks that hold copies; None: those of ``replicate_mesh``.

        Raises:
            ValueError: no group is given, and the optimizer has no ``replicate_mesh``; an option or a state is one that
                no step would take; or ranks differ in options, shapes or steps taken. Nothing was written.
            RuntimeError: another rank refused, or does something else. Nothing was written.
        """
        self._make_equal({param for _, param, _ in self._members()}, group)

    def _make_equal(
        self,
        params: set[Tensor],
        group: ProcessGroup | None = None,
        before: Callable[[list[str]], object] = lambda names: None,
    ) -> None:
        """Gives all replicas what the first has of these parameters.

        Args:
            before: called with their names, when nothing is written yet; where it raises, all ranks refuse.
        """
        writes = Writes()

        def prepare() -> list[Tensor]:
            self._flush()
            members = [(name, param) for name, param, _ in self._members() if param in params]
            before([name for name, _ in members])
            writes.params += [param for _, param in members]
            return [tensor for _, tensor in _common(self, writes.to, params)]

        common, copies = self._begin(_C.Operation.synchronize_replicas, group, prepare)
        with torch.no_grad():
            for tensor in common:
                _C.copy_from_first(tensor, copies)
            writes.finish()

    def _start_alike(self, params: set[Tensor]) -> None:
        """As all ranks do that have found these, or others, to be unequal before a step.

        Raises:
            UserWarning: as the user has asked for by a filter; nothing was written.
        """

        def say(names: list[str]) -> None:
            if names:
                warn(_C.sentence_of_apart(names))

        self._make_equal(params, before=say)

    def _begin(
        self, operation: _C.Operation, group: ProcessGroup | None, prepare: Callable[[], Prepared]
    ) -> tuple[Prepared, _C.Axis]:
        """What was prepared, and the line of ranks that hold copies, once all ranks are here for the same."""
        replicas = self._layouts.meshes.replicas
        if group is None and replicas is None:
            raise ValueError(f"{front()}: group must be the ranks that hold copies where replicate_mesh is None")
        copies = group if group is not None else replicas.group  # type: ignore[union-attr]
        others = None if copies == replica_group(self) else copies
        prepared = begin(self, self._layouts, operation, prepare, copies=others)
        return prepared, self._layouts.axes.replicas if others is None else _C.Axis(copies, name="copies")

    def _members(self) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
        """All parameters with the names that errors call them and their groups."""
        for index, group in enumerate(self.param_groups):
            for position, param in enumerate(group["params"]):
                yield name_of(group, position, f" (parameter group {index})"), param, group

    def decoupled_states(self, param: Tensor) -> list[str]:
        """The names of the states of a parameter that are each replica's own."""
        for name, member, group in self._members():
            if member is param:
                return _decoupled_states(self, param, group, name)
        raise ValueError(f"{front()}: param must be a parameter of this optimizer, got another tensor")

    def _may_be_decoupled(self) -> bool:
        """Also by steps that a graph replayed, which only the state counts."""
        may_be_replayed = self.defaults["capturable"] and replica_group(self) is not None
        return self._decoupled or (may_be_replayed and _steps_taken(self) != self._steps_when_equal)

    def _momenta_are_equal(self) -> None:
        self._decoupled, self._decoupled_as = False, ()
        if self.defaults["capturable"]:
            self._steps_when_equal = _steps_taken(self)

    def _may_decouple(self) -> None:
        """A step that all ranks take now."""
        self._decoupled = self._decoupled or self._layouts.axes.averages
        if self._decoupled:
            self._decoupled_as = tuple({key: group[key] for key in _SAY_WHOSE} for group in self.param_groups)

    def _refuse_other_holders(self) -> None:
        """What is each replica's own no step may take for what all have in common."""
        before = self._decoupled_as if self._decoupled else ()
        for index, (group, then) in enumerate(zip(self.param_groups, before, strict=False)):
            if all(group[key] == value for key, value in then.items()):
                continue
            for position, param in enumerate(group["params"]):
                name = name_of(group, position, f" (parameter group {index})")
                old, new = algorithm_of(param, group | then), algorithm_of(param, group)
                own = set(_decoupled_states(self, param, group | then, name))
                own -= set(_decoupled_states(self, param, group, name))
                changed = ("algorithm", old.name, new.name)
                if old.name == new.name:
                    changed = ("factorization", then["factorization"], group["factorization"])
                for state in sorted(own & {state.name for state in new.states}):
                    raise ValueError(
                        f"{front()}: the {changed[0]} of {name} must stay {changed[1]!r} while its {state} is each "
                        f"replica's own, got {changed[2]!r}; call synchronize_for_checkpoint() on every rank before it "
                        "changes"
                    )

    def _refuse_decoupled(self) -> None:
        if self._may_be_decoupled() and any(bool(momentum.any()) for momentum in decoupled_momenta(self)):
            raise RuntimeError(
                f"{front()}: the momenta are each replica's own; call synchronize_for_checkpoint() on every rank "
                "before state_dict()"
            )


_SAY_WHOSE = ("algorithm", "scalar_algorithm", "batch_dims", "factorization")
"""The options that say which algorithm updates a parameter, and whether its replicas average factors or gradients."""


def replica_group(optimizer: ReplicatedOptimizer) -> ProcessGroup | None:
    """The ranks over which the optimizer averages."""
    meshes = optimizer._layouts.meshes
    return meshes.replicas.group if meshes.replicas is not None and meshes.averages else None


def _steps_taken(optimizer: ReplicatedOptimizer) -> float:
    """By all parameters together. Waits for their devices."""
    states = (optimizer.state.get(param, {}) for _, param, _ in optimizer._members())
    return sum(float(state["step"]) for state in states if "step" in state)


def decoupled_momenta(optimizer: ReplicatedOptimizer) -> Iterator[Tensor]:
    """This rank's pieces of what is each replica's own, in an order that all ranks share."""
    optimizer._refuse_other_holders()
    for name, param, group in optimizer._members():
        for key in _decoupled_states(optimizer, param, group, name):
            yield local_part(optimizer.state[param][key])


def _common(
    optimizer: ReplicatedOptimizer, memory_of: Callable[[Tensor, str], Tensor], params: set[Tensor] | None = None
) -> list[tuple[str, Tensor]]:
    """This rank's pieces of all that replicas have in common, with the names of their parameters.

    Args:
        memory_of: gives the tensor of the bytes that are compared or written, or raises ValueError.
        params: only these; None: all.
    """
    common = []
    parts = optimizer._layouts.parts(optimizer.param_groups)
    for name, param, group in optimizer._members():
        if params is not None and param not in params:
            continue
        states = [] if param in parts else _common_states(optimizer, param, group, name)
        try:
            common += [(name, memory_of(_dense(tensor, name), name)) for tensor in (param, *states)]
        except ValueError:
            if is_begun(optimizer.state.get(param, {})) or not is_left_alone(param):  # else it may have no bytes
                raise
    return common


def _dense(tensor: Tensor, name: str) -> Tensor:
    """This rank's piece, which must have bytes."""
    local = local_part(tensor)
    if is_freed(local):
        raise ValueError(f"{front()}: {name} and its state must have memory, got {tensor.device} without any")
    return local


def _common_states(optimizer: ReplicatedOptimizer, param: Tensor, group: dict[str, Any], name: str) -> list[Tensor]:
    state = optimizer.state.get(param, {})
    if is_begun(state):
        check_keys(param, state, algorithm_of(param, group), name)
    own = _decoupled_states(optimizer, param, group, name)
    return [state[key] for key in STATE_DTYPES if key in state and key not in own]


def digests_of_common(optimizer: ReplicatedOptimizer, shared: list[Shared]) -> list[int]:
    """Hashes of this rank's pieces of all that replicas have in common of each parameter."""
    parts = optimizer._layouts.parts(optimizer.param_groups)
    return [_digest(optimizer, one, with_states=one.param not in parts) for one in shared]


def _digest(optimizer: ReplicatedOptimizer, shared: Shared, with_states: bool) -> int:
    param, group, _, name, _ = shared
    tensors = [param]
    with suppress(Exception):  # a state that no step takes is told of by the step that is to take it
        if with_states and float(optimizer.state.get(param, {}).get("step", 0)) > 0:  # else it is new, or will be
            tensors += _common_states(optimizer, param, group, name)
    hashes = [_hash(local_part(tensor), name) for tensor in tensors]
    return _C.digest_of(torch.tensor(hashes, dtype=torch.int64, device="cpu"))


def _hash(tensor: Tensor, name: str) -> int:
    """0: it has no numbers to compare, such as a parameter on the Meta device that is not trained."""
    with suppress(ValueError):
        plain = readable(tensor, name)
        if _C.has_memory(plain):
            return _C.digest_of(plain)
    return 0


def _decoupled_states(optimizer: ReplicatedOptimizer, param: Tensor, group: dict[str, Any], name: str) -> list[str]:
    state = optimizer.state.get(param)
    algorithm = algorithm_of(param, group)
    if not is_begun(state) or not algorithm.takes_matrices or param.numel() == 0:
        return []
    layout = optimizer._layouts.of(param, group, name).layout
    if layout.replicas.absent:
        return []
    assert state is not None
    check_keys(param, state, algorithm, name)
    ranks = [state[factor.name].shape[-1] for factor in algorithm.factors]
    return _C.decoupled_states(algorithm.name, list(param.shape), ranks, options_of(group), layout)
