"""Values that no option may have."""

import math

import torch

NAN, INF = math.nan, math.inf
DTYPE = "None, a floating-point torch.dtype or its name"

# option: (what the sentence says is allowed, values that are refused)
REFUSED = {
    "lr": ("a finite number ≥ 0", [-1e-9, NAN, INF, "0.1", None, True, 1j, torch.ones(2), torch.tensor(NAN)]),
    "mu": ("in [0, 1)", [-0.1, 1, 1.0, NAN, INF, "0.9", None, True]),
    "betas": ("two numbers in [0, 1)", [0.9, (0.9,), (0.9, 0.9, 0.9), (0.9, 1.0), (NAN, 0.9), ("a", "b"), (-0.1, 0.9)]),
    "weight_decay": ("a finite number ≥ 0", [-0.1, NAN, INF, "0", None, False, torch.ones(2), torch.tensor(-1.0)]),
    "epsilon": ("a finite number ≥ 0", [-1e-8, NAN, INF, "0", None]),
    "rank_fraction": ("in (0, 1]", [0, 0.0, -0.5, 1.5, NAN, INF, "1", None, True]),
    "rank_multiple_of": ("an integer ≥ 1", [0, -8, 1.0, 8.5, NAN, "8", None, True]),
    "orientation": ("one of 'right', 'left', 'short'", ["up", "", None, 0, ["left"]]),
    "factorization": ("one of 'power_iteration', 'svd'", ["pca", None, 1]),
    "nesterov": ("None or True or False", [0, 1, "yes"]),
    "error_feedback": ("True or False", [0, 1, None]),
    "cautious_wd": ("True or False", [0, 1, None]),
    "orthonormalize": ("one of 'auto', 'rcqr', 'cholesky_qr', 'qr'", ["svd", "QR", None, 1]),
    "rcqr_oversample": ("a finite number ≥ 1", [0.99, 0, -1, NAN, INF, "2", None]),
    "right_factor": ("one of 'normalized', 'orthonormal'", ["qr", None, 1]),
    "residual": ("None or one of 'scaled', 'sign'", ["signs", True, 1]),
    "scalar_algorithm": ("one of 'lion', 'adamw'", ["dion", "adam", None, 0]),
    "maximize": ("True or False", [0, 1, None, "yes"]),
    "capturable": ("True or False", [0, None, "yes"]),
    "nonfinite": ("one of 'propagate', 'zero', 'skip_step', 'raise'", ["ignore", None, 0]),
    "precision": ("None or one of 'highest', 'high', 'medium'", ["low", 32]),
    "seed": ("an integer of 64 bits", [1.0, "0", None, 2**63, -(2**63) - 1, True]),
}
GROUP_REFUSED = {
    "owners": ("one of 'all', 'shard'", ["some", None, 0]),
    "chunk_size": ("an integer in [1, 1024]", [0, 1025, 8.0, "8", None]),
    "top_k": ("an integer ≥ 1", [0, -1, 8.0, "8", None]),
    "replicate_mu": ("in [0, 1)", [-0.1, 1.0, NAN, "0.9", None]),
    "replicate_rank_fraction": ("in (0, 1]", [0, 1.5, NAN, "1", None]),
    "delayed": ("True or False", [0, 1, None, "yes"]),
    "muon_beta2": ("in [0, 1)", [-0.1, 1.0, NAN, "0.9", None]),
    "fraction": ("in (0, 1]", [0, 1.5, NAN, "1", None]),
    "ef_decay": ("in [0, 1)", [-0.1, 1.0, NAN, "0.9", None]),
    "select": ("one of 'auto', 'rows', 'columns'", ["cols", None, 1]),
    "algorithm": (
        "one of 'dion', 'muon', 'normuon', 'dion2', 'dion3', 'double_dion', 'demo', 'lion', 'adamw'",
        ["sgd", None, 0],
    ),
    "lr_multiplier": ("a finite number ≥ 0", [-1, NAN, INF, "1", None]),
    "batch_dims": ("None or an integer ≥ 0", [-1, 1.0, "1", True]),
    "blocks": ("an integer ≥ 1", [0, -3, 3.0, "3", None]),
    "fan_in_first": ("True or False", [0, "yes", None]),
    "skip_zero_gradients": ("True or False", [1, "experts", None]),
    "differentiable": ("False", [True, 1, 0, None]),
    "momentum_dtype": (DTYPE, [torch.int32, torch.complex64, "int32", "torch.float32", float]),
    "Q_dtype": (DTYPE, [torch.bool, 32]),
    "variance_dtype": (DTYPE, [torch.uint8, ""]),
}
