"""The optimizer: owns parameters and state, and hands both to the C++ engine once a step."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from torchdion import _C
from torchdion.options import OPTIMIZER_WIDE, check_options, resolve_betas, warn_of_near_misses
from torchdion.parameters import algorithm_of, check_gradient, check_parameter, describe
from torchdion.state import check_keys, create_state, restore_states


@dataclass(frozen=True)
class DionMixedPrecisionConfig:
    """The dtypes of the optimizer's state; None means the parameter's own.

    Args:
        momentum_dtype: of the momentum M of every algorithm.
        Q_dtype: of Dion's right factor Q.
        variance_dtype: of AdamW's second moment.
    """

    momentum_dtype: torch.dtype | None = None
    Q_dtype: torch.dtype | None = None
    variance_dtype: torch.dtype | None = None


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
        params: tensors, (name, tensor) pairs or groups, as torch.optim takes them. Group keys beside the options
            below: ``algorithm`` ("dion", "lion", "adamw"), ``lr_scale`` (a factor on lr, 1), ``batch_dims`` (leading
            dimensions that count matrices, as in stacks of experts), ``blocks`` (matrices fused along the rows: 3 for
            QKV), ``fan_in_first`` (True for ConvTranspose weights).
        lr: learning rate η, before the shape factor; a float or a tensor of one element. 0.01 transfers over model
            sizes (Section 5 of the paper).
        mu: momentum decay μ in [0, 1).
        betas: of Lion or AdamW; None means (0.95, 0.98) and (0.9, 0.95).
        weight_decay: λ, decoupled: X is scaled by 1 − ηλ.
        epsilon: AdamW's ε. Dion has none: it is scale-free.
        rank_fraction: r / min(m, n) in (0, 1].
        rank_multiple_of: r is rounded up to a multiple of this, at most min(m, n).
        orientation: "right" (Algorithm 4: Q is m×r) or "left" (Algorithms 1 and 3: Q is n×r).
        orthonormalize: "auto", "rcqr" (randomized Cholesky QR, Algorithm 2), "cholesky_qr" or "qr" (Householder).
        rcqr_oversample: rows of the sketch over r, at least 1.
        scalar_algorithm: "lion" or "adamw", for parameters of fewer than two dimensions.
        maximize: ascend instead of descend.
        capturable: for CUDA graphs; this version computes on the CPU and accepts only False.
        nonfinite: what NaN and infinite gradient entries do: "propagate" (reach the weights), "zero" (count as
            zero), "skip_step" (the whole step is left out), "raise" (before anything is written).
        precision: of products on CUDA; on the CPU every product is exact to its dtype.
        seed: of Q's start and of sketches; torch's own generators are not touched.
        replicate_mesh, outer_shard_mesh, inner_shard_mesh, replicate_mesh_grad_sync: for distributed jobs, with the
            ``dion`` package's names; this version runs in one process and accepts only the defaults.
        mixed_precision_config: dtypes of the state.

    Raises:
        ValueError: an option out of its range, or a parameter that no algorithm takes; one sentence names it.
        NotImplementedError: a distributed or CUDA option.

    State of each parameter: ``momentum`` (its shape), ``Q`` ([stack..., m or n, r]; Dion), ``variance`` (AdamW),
    ``step``.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2))
        >>> optimizer = Dion(model.parameters(), lr=0.01, rank_fraction=0.5)
        >>> model(torch.ones(4, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[model[0].weight]["Q"].shape
        torch.Size([16, 4])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        *,
        mu: float = 0.95,
        betas: tuple[float, float] | None = None,
        weight_decay: float = 0.01,
        epsilon: float = 1e-8,
        rank_fraction: float = 1.0,
        rank_multiple_of: int = 1,
        orientation: str = "right",
        orthonormalize: str = "auto",
        rcqr_oversample: float = 1.25,
        scalar_algorithm: str = "lion",
        maximize: bool = False,
        capturable: bool = False,
        nonfinite: str = "propagate",
        precision: str = "high",
        seed: int = 0,
        replicate_mesh: Any = None,
        outer_shard_mesh: Any = None,
        inner_shard_mesh: Any = None,
        replicate_mesh_grad_sync: bool = True,
        mixed_precision_config: DionMixedPrecisionConfig | None = None,
    ) -> None:
        meshes = {
            "replicate_mesh": replicate_mesh,
            "outer_shard_mesh": outer_shard_mesh,
            "inner_shard_mesh": inner_shard_mesh,
        }
        _refuse_distributed(meshes, replicate_mesh_grad_sync, capturable)
        defaults = {
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
            "algorithm": "dion",
            "scalar_algorithm": scalar_algorithm,
            "lr_scale": 1.0,
            "batch_dims": None,
            "blocks": 1,
            "fan_in_first": False,
            "maximize": maximize,
            "capturable": capturable,
            "nonfinite": nonfinite,
            "precision": precision,
            "seed": seed,
            **_state_dtypes(mixed_precision_config, ""),
        }
        check_options(defaults, "")
        self._broken: str | None = None
        self._counts = {
            "steps": 0,
            "skipped_steps": 0,
            "nonfinite_entries": 0,
            "batches": 0,
            "workspace_bytes": 0,
        }
        super().__init__(params, defaults)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_broken": self._broken, "_counts": self._counts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # saved before an option existed
            for name, default in self.defaults.items():
                group.setdefault(name, default)
            resolve_betas(group, group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group after checking it: nothing is added when an option or a parameter is refused.

        Raises:
            ValueError: see the class; the sentence names the group.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"torchdion.Dion: a parameter group must be a dict, got {type(param_group).__name__}")
        where = f" (parameter group {len(self.param_groups)})"
        entries = _entries(param_group, where)
        group = {**param_group, "params": entries}
        if "mixed_precision_config" in group:
            group |= _state_dtypes(group.pop("mixed_precision_config"), where)
        options = {**self.defaults, **group}
        check_options(options, where)
        for name in OPTIMIZER_WIDE:
            if options[name] != self.defaults[name]:
                raise ValueError(f"torchdion.Dion: {name} holds for the whole optimizer, got {options[name]!r}{where}")
        resolve_betas(group, options)
        warn_of_near_misses(group, where)
        seen: set[int] = set()
        for index, entry in enumerate(entries):
            name = describe(entry, index, where)
            check_parameter(entry, options, name)
            tensor = entry[1] if isinstance(entry, tuple) else entry
            if id(tensor) in seen:
                raise ValueError(f"torchdion.Dion: {name} is given twice")
            seen.add(id(tensor))
        super().add_param_group(group)

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
            ValueError: a gradient or a state that does not fit its parameter, or, with ``nonfinite="raise"``,
                gradients that are not finite. Nothing was written.
            RuntimeError: an earlier step failed after it had begun to write.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._refuse_if_broken()
        groups = _C.Groups()
        for group in self.param_groups:
            self._add_to(groups, group)
        step = _C.Step(groups, _C.Nonfinite.__members__[self.defaults["nonfinite"]])
        try:
            report = step.run()
        except BaseException:
            if step.wrote:
                self._broken = f"the last step failed after {step.completed} of {step.batches} batches"
            raise
        self._counts["steps"] += 1
        self._counts["skipped_steps"] += report.skipped
        self._counts["nonfinite_entries"] += report.nonfinite
        self._counts["batches"] = report.batches
        self._counts["workspace_bytes"] = report.workspace_bytes
        return loss

    def _refuse_if_broken(self) -> None:
        if self._broken is not None:
            raise RuntimeError(f"torchdion.Dion: {self._broken}; load a checkpoint")

    def _add_to(self, groups: _C.Groups, group: dict[str, Any]) -> None:
        """Hands the parameters of a group that have gradients to the engine, by algorithm."""
        params: dict[str, list[Tensor]] = {"dion": [], "lion": [], "adamw": []}
        for param in group["params"]:
            if param.grad is None:
                continue
            check_gradient(param)
            params[algorithm_of(param, group)].append(param)
        lr = float(group["lr"]) * group["lr_scale"]
        shared = {"lr": lr, "weight_decay": group["weight_decay"], "maximize": group["maximize"]}
        if params["dion"]:
            method = _C.Orthonormalize.__members__[group["orthonormalize"]]
            dion = _C.DionHyperparameters(
                **shared,
                mu=group["mu"],
                orthonormalize=method,
                rcqr_oversample=group["rcqr_oversample"],
                seed=group["seed"],
            )
            form = (group["batch_dims"] or 0, group["blocks"], group["fan_in_first"])
            orientation = _C.Orientation.__members__[group["orientation"]]
            groups.add_dion(*self._lists(params["dion"], group, "momentum", "Q", "step"), dion, *form, orientation)
        beta1, beta2 = group["betas"]
        if params["lion"]:
            lion = _C.LionHyperparameters(**shared, beta1=beta1, beta2=beta2)
            groups.add_lion(*self._lists(params["lion"], group, "momentum", "step"), lion)
        if params["adamw"]:
            adamw = _C.AdamWHyperparameters(**shared, beta1=beta1, beta2=beta2, epsilon=group["epsilon"])
            groups.add_adamw(*self._lists(params["adamw"], group, "momentum", "variance", "step"), adamw)

    def _lists(self, params: list[Tensor], group: dict[str, Any], *keys: str) -> list[list[Tensor]]:
        """The parameters, their gradients and the named states, each as a list; creates states that are missing."""
        states = [self.state[param] for param in params]
        if not all(states):
            indices = self._indices()
            for param, state in zip(params, states, strict=True):
                if not state:
                    state.update(create_state(param, group, indices[param]))
        for param, state in zip(params, states, strict=True):
            check_keys(param, state, keys)
        gradients = [param.grad for param in params if param.grad is not None]
        return [params, gradients, *([state[key] for state in states] for key in keys)]

    def _indices(self) -> dict[Tensor, int]:
        """Each parameter's place among all: what Q's start is drawn by."""
        every = (param for group in self.param_groups for param in group["params"])
        return {param: index for index, param in enumerate(every)}

    def state_dict(self) -> dict[str, Any]:
        """As torch's. Refuses to save what a failed step left behind.

        Raises:
            RuntimeError: a step failed after it had begun to write.
        """
        self._refuse_if_broken()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's; states keep the dtypes of ``mixed_precision_config`` instead of taking the parameter's."""
        originals: list[dict[str, Any]] = []
        hook = self.register_load_state_dict_pre_hook(lambda _, loaded: originals.append(loaded))  # the last: it sees
        try:  # what the others have made of it
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        restore_states(self, originals[0])
        self._broken = None

    def stats(self) -> dict[str, Any]:
        """What the optimizer has done and what it holds.

        Returns:
            ``steps`` (calls of step() by this object), ``skipped_steps`` and ``nonfinite_entries`` (under the
            ``nonfinite`` policies other than "propagate"), ``batches`` and ``workspace_bytes`` (of the last step),
            ``parameters`` (by algorithm), ``state_bytes``.
        """
        parameters = {"dion": 0, "lion": 0, "adamw": 0}
        for group in self.param_groups:
            for param in group["params"]:
                parameters[algorithm_of(param, group)] += 1
        tensors = (value for state in self.state.values() for value in state.values() if isinstance(value, Tensor))
        return {
            **self._counts,
            "parameters": parameters,
            "state_bytes": sum(t.numel() * t.element_size() for t in tensors),
        }


def _entries(param_group: dict[str, Any], where: str) -> list[Any]:
    """The group's parameters, named or not, as a list."""
    if "params" not in param_group:
        raise ValueError(f"torchdion.Dion: a parameter group must have the key 'params'{where}")
    params = param_group["params"]
    if isinstance(params, set):
        raise TypeError(f"torchdion.Dion: parameters must be in an ordered collection, got a set{where}")
    return [params] if isinstance(params, Tensor) else list(params)


def _state_dtypes(config: DionMixedPrecisionConfig | None, where: str) -> dict[str, Any]:
    if config is None:
        return asdict(DionMixedPrecisionConfig())
    if not isinstance(config, DionMixedPrecisionConfig):
        raise ValueError(
            "torchdion.Dion: mixed_precision_config must be None or a torchdion.DionMixedPrecisionConfig, "
            f"got {config!r}{where}"
        )
    return asdict(config)


def _refuse_distributed(meshes: dict[str, Any], grad_sync: bool, capturable: bool) -> None:
    for name, mesh in meshes.items():
        if mesh is not None:
            raise NotImplementedError(f"torchdion.Dion: {name} must be None: this version runs in one process")
    if not isinstance(grad_sync, bool):
        raise ValueError(f"torchdion.Dion: replicate_mesh_grad_sync must be True or False, got {grad_sync!r}")
    if capturable is True:
        raise NotImplementedError("torchdion.Dion: capturable must be False: this version computes on the CPU")
