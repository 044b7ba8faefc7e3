"""What an optimizer that averages over replicas does for them besides stepping."""

from torch import Tensor
from torch.distributed import ProcessGroup

from torchdion import _C
from torchdion.core_optimizer import CoreOptimizer
from torchdion.words import front, speaking


class ReplicatedOptimizer(CoreOptimizer):
    """Replicas of ``replicate_mesh`` hold the same weights and states to the last bit, with one exception.

    A matrix that is compressed, because (m + n) r < m n, has a *decoupled* momentum: each replica's own. The mean over
    the replicas is the momentum of a run on one process (arXiv 2504.05295, Theorem 4.1).
    """

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
        if replica_group(self) is None:
            return self._refuse_if_broken()
        self._core.synchronize_for_checkpoint(self)

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
        self._core.check_replicas(self, self._copies_of(group))

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
        self._core.synchronize_replicas(self, self._copies_of(group))

    def _copies_of(self, group: ProcessGroup | None) -> _C.Axis:
        """The ranks that hold copies; absent: those of ``replicate_mesh``, over which the optimizer averages."""
        replicas = self._layouts.meshes.replicas
        if group is None and replicas is None:
            raise ValueError(f"{front()}: group must be the ranks that hold copies where replicate_mesh is None")
        copies = group if group is not None else replicas.group  # type: ignore[union-attr]
        return _C.Axis() if copies == replica_group(self) else _C.Axis(copies, name="copies")

    @speaking
    def decoupled_states(self, param: Tensor) -> list[str]:
        """The names of the states of a parameter that are each replica's own."""
        return self._core.decoupled_states(self, param)


def replica_group(optimizer: ReplicatedOptimizer) -> ProcessGroup | None:
    """The ranks over which the optimizer averages."""
    meshes = optimizer._layouts.meshes
    return meshes.replicas.group if meshes.replicas is not None and meshes.averages else None
