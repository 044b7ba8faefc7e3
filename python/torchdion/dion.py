"""The front of Dion."""

from typing import Any, NoReturn

from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchdion.mixed_precision import DionMixedPrecisionConfig
from torchdion.optimizer import Optimizer
from torchdion.options import (
    Factorization,
    Nonfinite,
    Orientation,
    Orthonormalize,
    Precision,
    Residual,
    RightFactor,
)


class Dion(Optimizer):
    r"""Dion: orthonormalized updates from a low-rank approximation of the momentum (arXiv 2504.05295, Algorithm 1).

    A drop-in for any ``torch.optim`` optimizer. Parameters with two or more dimensions are matrices (a convolution is
    flattened to (out, rest)) and get Dion; the others get ``scalar_algorithm``. Per step and m×n matrix X with
    gradient G, momentum M and right factor Q:

    .. math::
        B = M + G, \quad P = \mathrm{orthonormalize}(B Q), \quad R = B^\top P, \quad
        M = B - (1 - \mu) P R^\top, \quad Q = \mathrm{column\_normalize}(R), \quad
        X = (1 - \eta\lambda) X - \eta \sqrt{m/n} \, P Q^\top

    Args:
        params: tensors, (name, tensor) pairs or groups, as torch.optim takes them. Group keys beside the options below:
            ``algorithm`` ("dion", "muon", "normuon", "dion2", "dion3", "double_dion", "demo", "lion", "adamw"),
            ``lr_multiplier`` (a factor on lr, 1), ``batch_dims`` (leading dimensions that count matrices, as in stacks
            of experts), ``blocks`` (matrices fused along the rows: 3 for QKV), ``fan_in_first`` (True for ConvTranspose
            weights), ``skip_zero_gradients`` (True: a matrix whose gradient is exactly zero on all ranks keeps weight,
            momentum and Q to the last bit, as experts without tokens should; False, the paper's rule: its momentum goes
            on moving it, and weight decay shrinks it).
        lr: learning rate η, before the shape factor; a float or a tensor of one element. 0.01 transfers over model
            sizes (Section 5 of the paper).
        mu: momentum decay μ in [0, 1).
        nesterov: True: L = B + μG is factored in place of B, and R = LᵀP; L = μB + G without error feedback. At full
            rank L is what Muon orthonormalizes under Nesterov; operations and traffic stay Dion's. None is the
            algorithm's own: False, True of groups under Muon.
        betas: of Lion or AdamW; None means (0.95, 0.98) and (0.9, 0.95).
        weight_decay: λ, decoupled: X is scaled by 1 − ηλ; a float or a tensor of one element.
        cautious_wd: True: an entry decays only where it has the sign of its update (arXiv 2510.12402).
        epsilon: AdamW's ε. Dion has none: it is scale-free.
        rank_fraction: r / min(m, n) in (0, 1].
        rank_multiple_of: r is rounded up to a multiple of this, at most min(m, n).
        error_feedback: False, for comparisons and beside ``residual``: M = μM + G is what is factored, and keeps all of
            itself (Appendix B.2).
        factorization: "power_iteration", or for comparisons "svd": P has the r leading left singular vectors of B
            (Appendix B.1). Matrices travel whole to their owners then, and replicas average gradients.
        orientation: "right" (Algorithm 4: Q is m×r), "left" (Algorithms 1 and 3: Q is n×r), or "short": of both the one
            whose P has min(m, n) rows, so that it costs least to orthonormalize ("right", of square matrices).
        orthonormalize: "auto", "rcqr" (randomized Cholesky QR, Algorithm 2), "cholesky_qr" or "qr" (Householder).
        rcqr_oversample: rows of the sketch over r, at least 1.
        right_factor: what the update and the next Q take of R: "normalized", its columns at length 1, or "orthonormal",
            its QR (arXiv 2605.16341), for which ranks that cut the columns of X sum one or two r×r matrices more.
        residual: how E = L − P Rᵀ, what the rank leaves of the factored matrix L (B, or with ``nesterov`` the
            look-ahead), moves the weights too. "scaled": P Qᵀ + E / σ in place of P Qᵀ, σ being the mean length of the
            shortest quarter of R's columns. "sign": P Qᵀ + 2 √((min(m, n) − r) / (m n)) sign(E), whose signs are twice
            as long as Muon's update without r of its directions. Meant for low ranks, with ``nesterov=True``,
            ``error_feedback=False`` and a rate below Muon's: two thirds of it at a quarter of the rank. No traffic and
            no state. At full rank nothing is left. Replicas that keep momenta of their own (``replicate_mesh`` with
            (m + n) r < m n) cannot have it.
        scalar_algorithm: "lion" or "adamw", for parameters of fewer than two dimensions.
        maximize: ascend instead of descend.
        capturable: for CUDA graphs: the state ``step`` lies on the parameter's device, and so may ``lr`` and
            ``weight_decay``, as tensors of one element that every replay reads anew (plain numbers are captured as they
            are). The host never waits for the device: a GradScaler's overflow and ``nonfinite="skip_step"`` are seen to
            there, and ranks agree at their first step only. Take a step or more before capturing one.
        nonfinite: what NaN and infinite gradient entries do: "propagate" (reach the weights), "zero" (count as
            zero), "skip_step" (the whole step is left out), "raise" (before anything is written). Finite ones whose
            sums FP16 does not hold make no momentum infinite: it is stored as 65504, the largest number of FP16.
        precision: what FP32 operands of products are rounded to: nothing ("highest"), TF32 ("high"; on a CPU, nothing),
            BF16 ("medium"; twice as fast on CPUs that multiply it). Sums are FP32. None is the algorithm's own: "high",
            "medium" of groups under Muon.
        seed: of Q's start and of sketches; torch's own generators are not touched.
        replicate_mesh: ranks whose gradients differ, as a DeviceMesh or a ProcessGroup: the optimizer averages over
            them, compressed (Section 4.3 of the paper: Dion's matrices send P and R, (m + n) r elements).
        outer_shard_mesh, inner_shard_mesh: the only ranks that may cut parameters, where one is given. None: whatever
            the parameters' DTensors say.
        replicate_mesh_grad_sync: False: gradients are averaged over replicate_mesh before step(), and its ranks only
            share the work of groups under Muon.
        mixed_precision_config: dtypes of the state.

    Raises:
        TypeError: an unknown keyword, ``params`` that is no iterable, or a parameter that is no tensor.
        ValueError: an option out of its range, or a parameter that no algorithm takes; one sentence names it.
        NotImplementedError: a parameter on a device that this build has no kernels for.

    In a distributed job every rank makes the same optimizer and steps at the same time. How a parameter is cut is read
    off its DTensor at each step (``fully_shard``, ``parallelize_module``, both); gradients that a wrapper averages
    (DDP, FSDP2, also on an HSDP mesh) need no mesh here. Under ``replicate_mesh`` a gradient that is missing on
    some replicas is zero there; a parameter without one on any of them is skipped. Replicas must start alike: the first
    step compares hashes of their weights, and warns of those that differ and get the first one's; see
    ``synchronize_replicas()``.

    State of each parameter: ``momentum`` (its shape), ``Q`` ([stack..., m or n, r]; Dion), ``variance`` (AdamW),
    ``step``; those of a DTensor are DTensors on its mesh.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2))
        >>> optimizer = Dion(model.parameters(), lr=0.01, rank_fraction=0.5)
        >>> model(torch.ones(4, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[model[0].weight]["Q"].shape
        torch.Size([16, 4])
    """

    algorithm = "dion"
    title = "torchdion.Dion"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        *,
        mu: float = 0.95,
        nesterov: bool | None = None,
        betas: tuple[float, float] | None = None,
        weight_decay: float | Tensor = 0.01,
        cautious_wd: bool = False,
        epsilon: float = 1e-8,
        rank_fraction: float = 1.0,
        rank_multiple_of: int = 1,
        error_feedback: bool = True,
        factorization: Factorization = "power_iteration",
        orientation: Orientation = "right",
        orthonormalize: Orthonormalize = "auto",
        rcqr_oversample: float = 1.25,
        right_factor: RightFactor = "normalized",
        residual: Residual | None = None,
        scalar_algorithm: str = "lion",
        maximize: bool = False,
        capturable: bool = False,
        nonfinite: Nonfinite = "propagate",
        precision: Precision | None = None,
        seed: int = 0,
        replicate_mesh: Any = None,
        outer_shard_mesh: Any = None,
        inner_shard_mesh: Any = None,
        replicate_mesh_grad_sync: bool = True,
        mixed_precision_config: DionMixedPrecisionConfig | None = None,
        **unknown: NoReturn,
    ) -> None:
        self._set_up(params, dict(locals()))
