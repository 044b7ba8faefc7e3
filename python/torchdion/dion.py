"""The optimizer: owns parameters and state, and hands both to the C++ engine once a step."""

from collections.abc import Callable
from typing import Any, NoReturn, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchdion import _C
from torchdion.agreement import Missing, agree, missing_when_alone, refusing
from torchdion.checkpoints import CheckpointedOptimizer
from torchdion.hand_over import engine_groups, gradient_scaling
from torchdion.layout import Layouts
from torchdion.meshes import read_meshes
from torchdion.mixed_precision import DionMixedPrecisionConfig, name_dtypes, state_dtypes
from torchdion.optimizer_wide import check_optimizer_wide, optimizer_wide_with
from torchdion.options import (
    DEFAULTS,
    Nonfinite,
    Orientation,
    Orthonormalize,
    Precision,
    ScalarAlgorithm,
    as_plain_numbers,
    check_options,
    refuse_unknown,
    resolve_betas,
    warn_of_near_misses,
)
from torchdion.parameters import check_named_dion, check_parameters, check_params, entries_of
from torchdion.state import is_recorded
from torchdion.stats import NO_STEPS, CountedOptimizer, count
from torchdion.torch_versions import disable_dynamo
from torchdion.wrappers import Writes


class Dion(CheckpointedOptimizer, CountedOptimizer):
    r"""Dion: orthonormalized updates from a low-rank approximation of the momentum (arXiv 2504.05295, Algorithm 1).

    A drop-in for any ``torch.optim`` optimizer. Parameters with two or more dimensions are matrices (a convolution is
    flattened to (out, rest)) and get Dion; the others get ``scalar_algorithm``. Per step and m×n matrix X with
    gradient G, momentum M and right factor Q:

    .. math::
        B = M + G, \quad P = \mathrm{orthonormalize}(B Q), \quad R = B^\top P, \quad
        M = B - (1 - \mu) P R^\top, \quad Q = \mathrm{column\_normalize}(R), \quad
        X = (1 - \eta\lambda) X - \eta \sqrt{m/n} \, P Q^\top

    Args:
        params: tensors, (name, tensor) pairs or groups, as torch.optim takes them. Group keys beside the options
            below: ``algorithm`` ("dion", "lion", "adamw"), ``lr_multiplier`` (a factor on lr, 1), ``batch_dims``
            (leading dimensions that count matrices, as in stacks of experts), ``blocks`` (matrices fused along the
            rows: 3 for QKV), ``fan_in_first`` (True for ConvTranspose weights), ``skip_zero_gradients`` (True: a matrix
            whose gradient is exactly zero on all ranks keeps weight, momentum and Q to the last bit, as experts without
            tokens should; False, the paper's rule: its momentum goes on moving it, and weight decay shrinks it).
        lr: learning rate η, before the shape factor; a float or a tensor of one element. 0.01 transfers over model
            sizes (Section 5 of the paper).
        mu: momentum decay μ in [0, 1).
        betas: of Lion or AdamW; None means (0.95, 0.98) and (0.9, 0.95).
        weight_decay: λ, decoupled: X is scaled by 1 − ηλ; a float or a tensor of one element.
        epsilon: AdamW's ε. Dion has none: it is scale-free.
        rank_fraction: r / min(m, n) in (0, 1].
        rank_multiple_of: r is rounded up to a multiple of this, at most min(m, n).
        orientation: "right" (Algorithm 4: Q is m×r) or "left" (Algorithms 1 and 3: Q is n×r).
        orthonormalize: "auto", "rcqr" (randomized Cholesky QR, Algorithm 2), "cholesky_qr" or "qr" (Householder).
        rcqr_oversample: rows of the sketch over r, at least 1.
        scalar_algorithm: "lion" or "adamw", for parameters of fewer than two dimensions.
        maximize: ascend instead of descend.
        capturable: for CUDA graphs: the state ``step`` lies on the parameter's device, and so may ``lr`` and
            ``weight_decay``, as tensors of one element that every replay reads anew (plain numbers are captured as they
            are). The host never waits for the device: a GradScaler's overflow and ``nonfinite="skip_step"`` are seen to
            there, and ranks agree at their first step only. Take a step or more before capturing one.
        nonfinite: what NaN and infinite gradient entries do: "propagate" (reach the weights), "zero" (count as
            zero), "skip_step" (the whole step is left out), "raise" (before anything is written). Finite ones whose
            sums FP16 does not hold make no momentum infinite: it is stored as 65504, the largest number of FP16.
        precision: what CUDA rounds FP32 operands of products to: nothing ("highest"), TF32 ("high"), BF16 ("medium").
        seed: of Q's start and of sketches; torch's own generators are not touched.
        replicate_mesh: ranks whose gradients differ, as a DeviceMesh or a ProcessGroup: the optimizer averages over
            them, compressed (Section 4.3 of the paper: Dion's matrices send P and R, (m + n) r elements).
        outer_shard_mesh, inner_shard_mesh: the only ranks that may cut parameters, where one is given. None: whatever
            the parameters' DTensors say.
        replicate_mesh_grad_sync: False: gradients are averaged over replicate_mesh before step().
        mixed_precision_config: dtypes of the state.

    Raises:
        TypeError: an unknown keyword, ``params`` that is no iterable, or a parameter that is no tensor.
        ValueError: an option out of its range, or a parameter that no algorithm takes; one sentence names it.
        NotImplementedError: a parameter on a device that this build has no kernels for.

    In a distributed job every rank makes the same optimizer and steps at the same time. How a parameter is cut is read
    off its DTensor at each step (``fully_shard``, ``parallelize_module``, both); gradients that a wrapper averages
    (DDP, FSDP2, also on an HSDP mesh) need no mesh here. Under ``replicate_mesh`` a gradient that is missing on
    some replicas is zero there; a parameter without one on any of them is skipped.

    State of each parameter: ``momentum`` (its shape), ``Q`` ([stack..., m or n, r]; Dion), ``variance`` (AdamW),
    ``step``; those of a DTensor are DTensors on its mesh.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2))
        >>> optimizer = Dion(model.parameters(), lr=0.01, rank_fraction=0.5)
        >>> model(torch.ones(4, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[model[0].weight]["Q"].shape
        torch.Size([16, 4])
    """

    _step_supports_amp_scaling = True  # GradScaler leaves unscaling, and leaving out a step, to step()

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        *,
        mu: float = 0.95,
        betas: tuple[float, float] | None = None,
        weight_decay: float | Tensor = 0.01,
        epsilon: float = 1e-8,
        rank_fraction: float = 1.0,
        rank_multiple_of: int = 1,
        orientation: Orientation = "right",
        orthonormalize: Orthonormalize = "auto",
        rcqr_oversample: float = 1.25,
        scalar_algorithm: ScalarAlgorithm = "lion",
        maximize: bool = False,
        capturable: bool = False,
        nonfinite: Nonfinite = "propagate",
        precision: Precision = "high",
        seed: int = 0,
        replicate_mesh: Any = None,
        outer_shard_mesh: Any = None,
        inner_shard_mesh: Any = None,
        replicate_mesh_grad_sync: bool = True,
        mixed_precision_config: DionMixedPrecisionConfig | None = None,
        **unknown: NoReturn,
    ) -> None:
        if unknown:
            refuse_unknown(unknown)
        defaults = DEFAULTS | {
            "lr": lr,
            "mu": mu,
            "betas": betas,
            "weight_decay": weight_decay,
            "epsilon": epsilon,
            "rank_fraction": rank_fraction,
            "rank_multiple_of": rank_multiple_of,
            "orientation": orientation,
            "orthonormalize": orthonormalize,
            "rcqr_oversample": rcqr_oversample,
            "scalar_algorithm": scalar_algorithm,
            "maximize": maximize,
            "capturable": capturable,
            "nonfinite": nonfinite,
            "precision": precision,
            "seed": seed,
            **state_dtypes(mixed_precision_config, ""),
        }
        defaults = as_plain_numbers(defaults)
        check_options(defaults, "")
        check_params(params)
        name_dtypes(defaults)
        self._broken: str | None = None
        self._agreed = False  # ranks have compared what they take the parameters for
        self._counts = dict(NO_STEPS)
        self._layouts = Layouts(
            read_meshes(replicate_mesh, outer_shard_mesh, inner_shard_mesh, replicate_mesh_grad_sync)
        )
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group after checking it: nothing is added when an option or a parameter is refused.

        Raises:
            TypeError, ValueError, NotImplementedError: see the class; the sentence names the group.
        """
        where = f" (parameter group {len(self.param_groups)})"
        entries = entries_of(param_group, where)
        group = as_plain_numbers({**param_group, "params": entries})
        if "mixed_precision_config" in group:
            group |= state_dtypes(group.pop("mixed_precision_config"), where)
        wide = optimizer_wide_with(group, self.param_groups, self.defaults)
        group = {**wide, **group}
        options = {**self.defaults, **group}
        check_options(options, where)
        check_optimizer_wide(group, wide, where)
        resolve_betas(group, options)
        name_dtypes(group)
        warn_of_near_misses(group, where)
        check_parameters(entries, options, where)
        check_named_dion(entries, group, where)
        if not self.param_groups:
            self.defaults |= wide
        given = dict(param_group)
        param_group.clear()
        param_group.update(group)
        try:
            super().add_param_group(param_group)  # the caller's own dict, as torch keeps it
        except BaseException:
            param_group.clear()
            param_group.update(given)
            raise
        self._agreed = False

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
    def _update(self) -> None:
        step = None
        created: list[Tensor] = []
        try:
            step, writes = self._planned_step(created)
            self._decoupled = self._decoupled or self._layouts.averages
            report = step.run()
            if isinstance(report.skipped, Tensor) or not report.skipped:
                writes.finish()
        except BaseException:
            if step is not None and step.wrote and not is_recorded(self):
                self._broken = f"the last step failed after {step.completed} of {step.batches} batches"
            else:
                for param in created:
                    del self.state[param]
            raise
        count(self._counts, report)

    def _planned_step(self, created: list[Tensor]) -> tuple[_C.Step, Writes]:
        """Checked on this rank, and on all others."""
        # A captured step has no time for what ranks have to say, once they have compared their parameters.
        is_alone = self._agreed and self.defaults["capturable"]

        def plan(missing: Missing) -> tuple[_C.Step, Writes]:
            self._refuse_if_broken()
            writes = Writes()
            scaling = gradient_scaling(self, self._layouts)
            groups = engine_groups(self, self._layouts, created, writes, missing)
            return _C.Step(groups, _C.Nonfinite.__members__[self.param_groups[0]["nonfinite"]], *scaling), writes

        if is_alone:
            return plan(missing_when_alone(self, self._layouts))
        with refusing(self, self._layouts):
            planned = plan({})

        def provide(missing: Missing) -> None:
            nonlocal planned
            if missing:
                planned = plan(missing)

        agree(self, self._layouts, provide=provide)
        self._agreed = True
        return planned
