"""The optimizer's state between runs: pickled, saved, loaded and given another rank."""

from contextlib import suppress
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from torchdion import _C
from torchdion.layouts import Layouts
from torchdion.loading import load_checked
from torchdion.meshes import Meshes
from torchdion.mixed_precision import name_dtypes
from torchdion.options import (
    DEFAULTS,
    as_plain_numbers,
    check_of_run,
    rename_saved_options,
    resolve_betas,
    without_others,
)
from torchdion.owned_tensor import OwnedTensor
from torchdion.replicas import ReplicatedOptimizer
from torchdion.words import speaking
from torchdion.wrappers import Writes
from torchdion.written_keys import Snapshot, look_at

_COUNTED = ("steps", "skipped_steps", "nonfinite_entries", "columns_without_signal", "columns_in_margin")


class CheckpointedOptimizer(ReplicatedOptimizer):
    """State dicts have torch's form; states of DTensors are DTensors, which torch.distributed.checkpoint reshards."""

    @speaking
    def __getstate__(self) -> dict[str, Any]:
        self._flush()
        with suppress(ValueError):  # the copy's step refuses it too, since it knows what was there before
            look_at(self.param_groups, self._snapshots, self.defaults, self.state)
        own = ("_flatten", "_layouts", "_step_supports_amp_scaling")  # torch keeps none but its own
        return (
            super().__getstate__()
            | {name: vars(self)[name] for name in own if name in vars(self)}
            | {"_memory": self._core.memory}
            | {"_snapshots": [(snapshot.values, snapshot.warned) for snapshot in self._snapshots]}
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # What was saved before an option existed gets its default.
        rename_saved_options(self.defaults)
        self.defaults = without_others(DEFAULTS | self.defaults)
        if "_core" not in vars(self):  # a copy, not one that loads a state dict
            self._core, self._writes = _C.Core(), Writes()
            self._core.memory = _memory_of(vars(self))
        self._core.parameters_changed()
        self._flatten = self.__dict__.get("_flatten")
        self._layouts = self.__dict__.get("_layouts", Layouts(Meshes()))
        for group in self.param_groups:
            rename_saved_options(group)
            whole = {**DEFAULTS, **self.defaults, **as_plain_numbers(group)}
            resolve_betas(whole)
            name_dtypes(whole)
            group.clear()
            group |= without_others(whole, self.defaults.keys())
        kept = state.get("_snapshots", ())  # none of a loaded state dict, nor of an older version's pickle
        kept = kept if len(kept) == len(self.param_groups) else [(None, ())] * len(self.param_groups)
        self._snapshots = [Snapshot(group, *each) for group, each in zip(self.param_groups, kept, strict=True)]

    @speaking
    def state_dict(self) -> dict[str, Any]:
        """As torch's. Refuses to save what a failed step left behind; waits for what a delayed one left in flight.

        Raises:
            RuntimeError: a step failed after it had begun to write, or momenta are each replica's own: see
                ``synchronize_for_checkpoint()``.
            ValueError: there is a state of a parameter that is in no group, or a group has an option out of its range
                or keys that contradict each other.
        """
        self._refuse_if_broken()
        look_at(self.param_groups, self._snapshots, self.defaults, self.state)
        check_of_run(self.param_groups, self.defaults)
        self._refuse_states_of_no_group()
        hook = self.register_state_dict_post_hook(_as_saved, prepend=True)
        try:
            state_dict = super().state_dict()
        finally:
            hook.remove()
        self._core.refuse_if_decoupled(self)  # now that hooks have run, one of which may synchronize
        return state_dict

    @torch.no_grad()
    @speaking
    def whole_state_dict(self) -> dict[str, Any]:
        """The state dict of one process: of whole states, put together from what all ranks have.

        To be called on every rank, whichever of them saves; every one gets all of it. Any layout loads it, in either
        language. Momenta that are each replica's own are averaged first, see ``synchronize_for_checkpoint()``.

        Raises:
            ValueError: as of ``state_dict()``, or ranks differ in options, shapes or steps taken.
            RuntimeError: a step failed after it had begun to write, another rank refused, or does something else.
        """
        whole = iter(self._core.whole_states(self))
        state_dict = self.state_dict()
        states = {}
        for key, (param, _, _) in enumerate(self._members()):
            tensors = {} if is_lazy(param) else next(whole)
            if self.state.get(param) and key in state_dict["state"]:
                states[key] = state_dict["state"][key] | tensors
        return {**state_dict, "state": states}

    @speaking
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's; states keep the dtypes of ``mixed_precision_config`` instead of taking the parameter's.

        Parameters that are DTensors take states that lie as they do, or whole ones, as a run on one process saves
        them; of those each rank keeps its piece.

        Args:
            state_dict: of this class, of C++, or of an optimizer that docs/guides/migrating.md lists; its tensors are
                copied.

        Raises:
            TypeError: it is no dict; nothing was loaded.
            ValueError: the checkpoint of another model or optimizer, or a damaged one; nothing was loaded.
        """
        load_checked(self, super().load_state_dict, state_dict)

    @torch.no_grad()
    @speaking
    def resize_rank(self, rank_fraction: float | None = None, rank_multiple_of: int | None = None) -> None:
        """Gives every Q the rank that the options of its group ask for.

        For a run that goes on from a checkpoint with another rank: make the optimizer with the checkpoint's
        ``rank_fraction``, load, then call this. A smaller rank keeps the leading columns of Q, with which the run would
        have been one of that rank; a larger one adds orthonormal columns. To be called on every rank of the job.

        Args:
            rank_fraction, rank_multiple_of: for all groups; None: what each group has.

        Raises:
            ValueError: an option out of its range, another one than on other ranks, or a rank at which a parameter's
                layout cannot have the group's options; nothing was changed.
            RuntimeError: a step failed after it had begun to write, or other ranks did not call this; nothing was
                changed.
        """
        given = {"rank_fraction": rank_fraction, "rank_multiple_of": rank_multiple_of}
        options = as_plain_numbers({name: value for name, value in given.items() if value is not None})
        self._core.resize_rank(self, options)
        for group in self.param_groups:
            group |= options
        for snapshot in self._snapshots:
            snapshot.remember()


def _memory_of(pickled: dict[str, Any]) -> dict[str, Any]:
    """What the core of a copy remembers, also of a pickle of version 0.2."""
    counts: dict[str, Any] = dict.fromkeys((*_COUNTED, "batches", "workspace_bytes"), 0) | {"expected_traffic": {}}
    of_before = {
        "broken": pickled.pop("_broken", None) or "",
        "counts": counts | pickled.pop("_counts", {}),
        "decoupled": pickled.pop("_decoupled", False),
        "decoupled_as": [list(said.values()) for said in pickled.pop("_decoupled_as", ())],
        "steps_when_equal": pickled.pop("_steps_when_equal", 0.0),
    }
    memory: dict[str, Any] = pickled.pop("_memory", of_before)
    return memory


def _as_saved(optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
    """States of which this rank has a part as what says so, and numbers of NumPy, which not every unpickler knows.

    A group itself keeps its numbers: an array may be another's, who changes it in place.
    """
    states = dict(state_dict["state"])
    if optimizer.defaults["owners"] == "shard":
        for index, name, whole, begin in optimizer._core.owned_states(optimizer):
            if name in states.get(index, ()):
                states[index] = states[index] | {name: OwnedTensor(states[index][name], whole, begin)}
    groups = [as_plain_numbers(group) for group in state_dict["param_groups"]]
    return {**state_dict, "state": states, "param_groups": groups}
