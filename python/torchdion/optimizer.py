"""What all optimizers are: they own parameters and state, and give both to the C++ engine once a step."""

from collections.abc import Callable
from typing import Any, ClassVar, overload

import torch

from torchdion import _C, dion_package
from torchdion.checkpoints import CheckpointedOptimizer
from torchdion.layouts import Layouts
from torchdion.meshes import read_meshes
from torchdion.mixed_precision import name_dtypes, state_dtypes
from torchdion.optimizer_wide import check_optimizer_wide, optimizer_wide_with
from torchdion.options import (
    DEFAULTS,
    as_plain_numbers,
    check_options,
    refuse_unknown,
    without_others,
)
from torchdion.owners import check_owners
from torchdion.parameters import (
    check_named_algorithm,
    check_parameters,
    check_params,
    entries_of,
    is_passed_over,
    tensor_of,
)
from torchdion.stats import CountedOptimizer
from torchdion.torch_versions import disable_dynamo
from torchdion.words import front, speaking
from torchdion.wrappers import Writes
from torchdion.written_keys import Snapshot, look_at_added_group


class Optimizer(CheckpointedOptimizer, CountedOptimizer):
    """The class of an algorithm has its signature and documentation, and gives what it was called with to _set_up()."""

    algorithm: ClassVar[str]
    """Of groups that name none."""
    title: ClassVar[str]
    """What sentences call the class."""
    exchanges: ClassVar[str] = "replicas average in the step (replicate_mesh)"
    """The messages of a step, in the words of plans."""

    @classmethod
    def of(cls, algorithm: str) -> "type[Optimizer]":
        """The class of an algorithm that has one."""
        return next(each for each in cls.__subclasses__() if each.algorithm == algorithm)

    _step_supports_amp_scaling = True  # GradScaler leaves unscaling, and leaving out a step, to step()

    @speaking
    def _set_up(self, params: Any, given: dict[str, Any]) -> None:
        """Checks the arguments of the constructor before torch's own begins.

        Args:
            given: all of them by their names: options, ``replicate_mesh`` and so on, and ``unknown`` ones.
        """
        given = as_plain_numbers(given)
        if given["unknown"]:
            check_params(params)
            params = params if isinstance(params, (list, tuple)) else list(params)
            given["unknown"] = as_plain_numbers(given["unknown"])
            given = dion_package.ours(given, params, self.algorithm)
            refuse_unknown(given["unknown"], given.keys() - {"unknown"})
        self._flatten = given.get("flatten")  # what groups say to the dion package, in the place of batch_dims
        if dion_package.is_mesh(given["lr"]):
            raise ValueError(
                f"{front()}: lr must be a number, got {type(given['lr']).__name__}; the dion package's second argument "
                f"is the keyword {dion_package.mesh_argument(self.algorithm)} here"
            )
        defaults = DEFAULTS | {"algorithm": self.algorithm}
        defaults |= {name: given[name] for name in defaults if name in given}
        defaults |= state_dtypes(given["mixed_precision_config"], "")
        check_options(defaults, "")
        check_params(params)
        name_dtypes(defaults)
        self._core, self._writes = _C.Core(), Writes()
        self._snapshots: list[Snapshot] = []
        replicate, outer, inner = (given[name] for name in ("replicate_mesh", "outer_shard_mesh", "inner_shard_mesh"))
        self._layouts = Layouts(read_meshes(replicate, outer, inner, given["replicate_mesh_grad_sync"]))
        super().__init__(params, without_others(defaults))

    @speaking
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group after checking it: nothing is added when an option or a parameter is refused.

        Args:
            param_group: ``params`` and options of their own; others are those of the constructor.

        Raises:
            TypeError, ValueError, NotImplementedError: see the class; the sentence names the group.
        """
        where = f" (parameter group {len(self.param_groups)})"
        entries = entries_of(param_group, where)
        given = as_plain_numbers(param_group)
        trained = [entry for entry in entries if not is_passed_over(tensor_of(entry))]
        given = dion_package.named_as_here(given, trained, self._flatten, where)
        group = {**given, "params": entries}
        if "mixed_precision_config" in group:
            group |= state_dtypes(group.pop("mixed_precision_config"), where)
        wide = optimizer_wide_with(group, self.param_groups, self.defaults)
        named = group
        group = {**DEFAULTS, **self.defaults, **wide, **group}
        check_options(group, where)
        check_optimizer_wide(group, wide, where)
        name_dtypes(group)
        sentences = look_at_added_group(group, named, entries, self.defaults, where)
        check_parameters(entries, group, where)
        check_named_algorithm(entries, named, where)
        check_owners(entries, group, self._layouts.meshes, where)
        before = dict(param_group)
        param_group.clear()
        param_group.update(group)
        snapshot, is_first = Snapshot(param_group), not self.param_groups
        try:
            snapshot.warn_once(sentences)  # a filter may make an error of a warning
            super().add_param_group(param_group)  # the caller's own dict, as torch keeps it
        except BaseException:
            param_group.clear()
            param_group.update(before)
            raise
        if is_first:
            self.defaults |= wide
        self._snapshots.append(snapshot)
        self._core.parameters_changed()

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One optimization step. Everything is checked and allocated before anything is written.

        Args:
            closure: recomputes the loss and its gradients; its result is returned.

        Raises:
            TypeError: ``grad_scale`` or ``found_inf``, which a GradScaler sets, is no number.
            ValueError: a gradient or a state that does not fit its parameter, or, with ``nonfinite="raise"``,
                gradients that are not finite, or ranks that disagree on options or layouts. Nothing was written.
            NotImplementedError: a parameter has moved to a device that this build has no kernels for.
            RuntimeError: a gradient is sparse, another rank refused this step, an earlier one failed after it had begun
                to write, or a collective failed; its sentence names the axis and, once weights are written, the batch.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._update()
        return loss

    @disable_dynamo  # a compiled function calls the engine; there is nothing in it to trace
    @speaking
    def _update(self) -> None:
        self._step_once()
