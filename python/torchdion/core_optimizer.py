"""What the engine's core is shown of an optimizer, and what it gives back of its states."""

import atexit
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from torchdion import _C
from torchdion.by_cpu import redistributed
from torchdion.dtensor import check_lies_as, is_dtensor, local_part, local_piece, state_like
from torchdion.layouts import Layouts
from torchdion.meshes import second_group
from torchdion.options import RANKS, check_beside_table, check_of_run
from torchdion.owners import check_owned
from torchdion.parameters import check_gradient, check_is_tensor, check_trained, is_left_alone, name_of
from torchdion.plain_values import plain
from torchdion.state import check_is_state, check_placements, is_begun, placements_of_state
from torchdion.table import STATE_DTYPES, Group, algorithm_of
from torchdion.words import front, shown
from torchdion.wrappers import Writes, check_plain, readable
from torchdion.written_keys import Snapshot, look_at

_UNDER_WAY: "WeakSet[CoreOptimizer]" = WeakSet()


@atexit.register
def _wait_for_all() -> None:
    """A process that ends would leave the other ranks waiting."""
    for optimizer in list(_UNDER_WAY):
        with suppress(Exception):  # there is no one to tell
            optimizer._flush()


class CoreOptimizer(Optimizer):
    """An optimizer of which the engine's core is what it is between steps.

    The core calls the methods below when a parameter, a state or a group is another one than it has seen.
    """

    _core: _C.Core
    _layouts: Layouts
    _snapshots: list[Snapshot]
    _writes: Writes

    def _step_once(self) -> None:
        try:
            self._core.step(self)
        finally:
            self._writes.clear()  # copies of weights
        if self._core.has_in_flight:
            _UNDER_WAY.add(self)

    def _flush(self) -> None:
        """Waits for what the last step has left in flight.

        Raises:
            RuntimeError: it failed; states are no longer what any step leaves.
        """
        self._core.flush(self)

    def _refuse_if_broken(self) -> None:
        self._core.refuse_if_broken(self)

    def _members(self) -> Iterator[tuple[Tensor, Group, str]]:
        """All parameters, their groups and the names that errors call them."""
        for index, group in enumerate(self.param_groups):
            for position, param in enumerate(group["params"]):
                yield param, group, name_of(group, position, f" (parameter group {index})")

    def _show_parameters(self) -> None:
        """Who they are, and which ranks hold them too; a lazy module's have no numbers yet."""
        index, groups = 0, []
        for group_index, group in enumerate(self.param_groups):
            members = []
            for position, param in enumerate(group["params"]):
                name = name_of(group, position, f" (parameter group {group_index})")
                check_is_tensor(param, name)
                if not is_lazy(param):
                    lies = str(param.placements) if is_dtensor(param) else "a plain tensor"
                    members.append((param, name, index, self._layouts.axes.of(param), lies))
                index += 1
            groups.append(members)
        self._core.show_parameters(groups)

    def _look_at_groups(self, operation: str) -> None:
        """Obeys what was written into groups."""
        # Q get the ranks that others have written: there is nothing to warn of, once they have.
        put_off = RANKS if operation == "resize_rank" else frozenset()
        look_at(self.param_groups, self._snapshots, self.defaults, self.state, put_off)
        if operation == "whole_state_dict":
            self._refuse_states_of_no_group()

    def _check_beside_table(self) -> None:
        """Of groups whose options are good."""
        for index, group in enumerate(self.param_groups):
            check_beside_table(group, f" (parameter group {index})")
        check_of_run(self.param_groups, self.defaults)

    def _show_contents(self) -> None:
        """Where parameters lie, this rank's pieces of them and of their states."""
        self._writes = Writes()
        members = list(self._members())
        contents = [self._shown(param, group, name) for param, group, name in members if not is_lazy(param)]
        self._core.show_contents(contents, len(contents) < len(members) or self._writes.has_any())

    def _shown(self, param: Tensor, group: dict[str, Any], name: str) -> tuple[Any, ...]:
        """The same of a parameter, or as much as there is where it gets no gradient."""
        layout = _C.Layout(replicas=self._layouts.axes.replicas)
        try:
            if not is_left_alone(param):
                check_trained(param, name)
            if group["owners"] == "shard":
                check_owned(param, name)  # which a wrapper may have replaced
            layout = self._layouts.of(param, group, name).layout
        except (ValueError, RuntimeError, NotImplementedError):
            if not is_left_alone(param):  # else it may lie as no algorithm can follow
                raise
        try:
            return self._content_of(param, group, name)
        except (ValueError, RuntimeError, NotImplementedError):
            if param.grad is not None:  # else it may have no numbers, or a state that no step takes
                raise
        state = self.state.get(param)
        own = {key: state.get(key) for key in (*STATE_DTYPES, "step")} if isinstance(state, dict) else {}
        kept = {key: (local_part(each), list(each.shape)) for key, each in own.items() if isinstance(each, Tensor)}
        return False, param, layout, None, kept

    def _require(self, param: Tensor, group_index: int, name: str) -> None:
        """Raises for a parameter that a step is to update after all."""
        self._content_of(param, self.param_groups[group_index], name)

    def _content_of(self, param: Tensor, group: dict[str, Any], name: str) -> tuple[Any, ...]:
        piece = self._layouts.of(param, group, name)
        local = self._writes.to(local_piece(param, piece.shape), name)
        of_dtensor = (param._local_tensor, param._spec) if is_dtensor(param) else None
        return True, local, piece.layout, of_dtensor, self._state_of(param, group, name)

    def _state_of(self, param: Tensor, group: dict[str, Any], name: str) -> dict[str, tuple[Tensor, list[int]]] | None:
        """This rank's pieces of its tensors, and their whole sizes; None: it has taken no step."""
        state = self.state.get(param, {})
        check_is_state(state, name)
        if not is_begun(state):
            return None
        own = {declared.name for declared in algorithm_of(param, group).states}
        kept = {}
        for key in (*STATE_DTYPES, "step"):
            value = state.get(key)
            if isinstance(value, Tensor):
                local = local_part(value)
                check_plain(local, f"the state {key} of {name}")
                kept[key] = local, list(value.shape)
            elif key == "step" or (key in own and key in state):  # no tensor: none of another algorithm's either
                kind = type(value).__name__
                raise ValueError(f"{front()}: the state {key} of {name} must be a tensor, got {kind}")
        if own <= kept.keys():
            check_placements(state, param, group, name)
        return kept

    def _local_gradient(self, param: Tensor, name: str, shape: list[int]) -> Tensor:
        """This rank's piece of a gradient, whose sum over ranks may be due yet (Partial)."""
        gradient = param.grad
        assert gradient is not None
        check_gradient(gradient, param, name)
        if is_dtensor(gradient) and is_dtensor(param) and gradient.device_mesh == param.device_mesh:
            if gradient.placements != param.placements:
                gradient = redistributed(gradient, param.placements)
        else:
            check_lies_as(gradient, param, getattr(param, "placements", ()), f"the gradient of {name}")
        return readable(local_piece(gradient, tuple(shape)), f"the gradient of {name}")

    @torch.no_grad()
    def _keep(self, param: Tensor, group_index: int, tensors: dict[str, tuple[Tensor, list[int]]]) -> None:
        """Takes what the core has made of a state, beside what others keep there."""
        group, state = self.param_groups[group_index], self.state.get(param, {})
        declared = {each.name: each for each in algorithm_of(param, group).states}
        for key, (tensor, sizes) in tensors.items():
            if key in state and local_part(state[key]) is tensor:
                continue
            is_whole = key == "step" or not is_dtensor(param)
            placements = () if is_whole else placements_of_state(declared[key], sizes, param, group)
            state[key] = tensor if is_whole else state_like(tensor, param, sizes, placements)
        self.state[param] = state

    def _gradient_scaling(self) -> tuple[Tensor | None, Tensor | None]:
        """The scale of the gradients and whether one overflowed, where a GradScaler has set them.

        Raises:
            TypeError: they are no numbers.
            ValueError: the optimizer averages over replicas, whose scalers part with the first overflow that one sees.
        """
        scale, overflow = (_tensor(getattr(self, name, None), name) for name in ("grad_scale", "found_inf"))
        if not self._layouts.axes.replicas.absent:
            raise ValueError(
                f"{front()}: a GradScaler must not be used with a replicate_mesh, because each replica's sees only its "
                "own gradients' overflows; train in BF16, which needs none"
            )
        return scale, overflow

    def _open_groups(self, axes: list[_C.Axis]) -> None:
        """Gives axes second groups, for what goes on between steps; all of their ranks do so at once."""
        for axis in axes:
            axis.set_in_flight_group(second_group(axis.group, self._layouts.axes))

    def _written(self) -> None:
        self._writes.finish()

    def _refuse_states_of_no_group(self) -> None:
        """For parameters that others have taken out of their groups: a state dict has no key for them."""
        known = {id(param) for group in self.param_groups for param in group["params"]}
        for param in self.state:
            if isinstance(param, Tensor) and id(param) not in known:
                raise ValueError(
                    f"{front()}: optimizer.state must be of parameters of its groups, got that of a parameter of shape "
                    f"{tuple(param.shape)} that is in none; take its state out too"
                )


def _tensor(number: Any, name: str) -> Tensor | None:
    """What a GradScaler has set; the sum of its flags is a plain 0 where no parameter has a gradient."""
    number = plain(number)
    if number is None or isinstance(number, Tensor):
        return number
    if not isinstance(number, float) and not (isinstance(number, int) and abs(number) < 2**63):
        raise TypeError(f"{front()}: {name} must be a tensor of one element or a number, got {shown(number)}")
    return torch.as_tensor(number, device="cpu")
