"""What all optimizers are: they own parameters and state, and give both to the C++ engine once a step."""

from collections.abc import Callable
from typing import Any, ClassVar, overload

import torch

from torchdion import _C, dion_package
from torchdion.checkpoints import CheckpointedOptimizer
from torchdion.layouts import Layouts
from torchdion.meshes import read_meshes
from torchdion.mixed_precision import name_dtypes, state_dtypes
from torchdion.options import (
    DEFAULTS,
    as_plain_numbers,
    check_optimizer_wide,
    check_options,
    optimizer_wide_with,
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
    parameters_by_algorithm,
    tensor_of,
)
from torchdion.state import state_bytes
from torchdion.torch_versions import disable_dynamo
from torchdion.words import front, speaking
from torchdion.wrappers import Writes
from torchdion.written_keys import Snapshot, look_at_added_group

# Counts that a device may still be computing: numbers or tensors of one.
_LAZY = ("skipped_steps", "nonfinite_entries", "columns_without_signal", "columns_in_margin")


class Optimizer(CheckpointedOptimizer):
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
            given: a copy of its ``locals()``, made without a loop: a debugger changes these meanwhile (Python 3.12).
        """
        given = as_plain_numbers({name: value for name, value in given.items() if name != "self"})
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
        named = {**given, "params": entries}
        wide = optimizer_wide_with(named, self.param_groups, self.defaults)
        group = {**DEFAULTS, **self.defaults, **wide, **named}
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

    @speaking
    def stats(self) -> dict[str, Any]:
        """What the optimizer has done and what it holds.

        Returns:
            A dictionary of

            - ``steps``: calls of step() by this object; neither this nor what is counted in steps counts replays of a
              graph;
            - ``skipped_steps``, and ``nonfinite_entries`` under the ``nonfinite`` policies other than "propagate";
            - ``columns_without_signal``: columns of P that were zero or not well above rounding, which is where a plain
              Cholesky factorization fails, and became exactly zero: where momenta have a smaller rank than P has
              columns. They are those of the matrices that this rank orthonormalized; ranks that share the rows of P
              all count them;
            - ``columns_in_margin``: those of them that were longer than their rounding, but not by the factor that
              counts as signal: there, runs on different layouts may part (docs/reference/limits.md);
            - ``batches`` and ``workspace_bytes`` of the last step;
            - ``parameters`` by algorithm, ``state_bytes`` on this rank;
            - ``traffic``: what this object sent, by name of the mesh dimension, kind of collective and unit:
              ``stats()["traffic"]["tp"]["all_reduce"]["bytes"]``. Elements are those of the full tensor on this rank; a
              sum that is scattered and gathered again counts them as ``reduce_scatter``, its gathering the calls and
              bytes of ``completion``; ``agreement`` has those of the flags on which ranks agree before a step;
            - ``expected_traffic``: the elements that the last step had to send by the formulas of the paper's Table 2,
              by mesh dimension.

        Waits for what the last step of a delayed :class:`torchdion.DoubleDion` has left in flight.
        """
        self._flush()
        counts = self._core.counts
        return {
            **counts,
            **{name: int(counts[name]) for name in _LAZY},  # waits for the devices that are still counting
            "parameters": parameters_by_algorithm(self.param_groups),
            "state_bytes": state_bytes(self.state),
            "traffic": self._layouts.axes.traffic(),
        }
