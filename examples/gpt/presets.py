"""What a flag is when it is not given: by preset, by optimizer, and in general."""

from typing import Any

import own_optimizer

STANDARD_LIBRARY = "stdlib"

# The paper's shapes, batches and steps; a batch counts sequences of `context` tokens.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "layers": 4, "d_model": 128, "heads": 4, "context": 256,
        "batch": 32, "micro_batch": 32, "steps": 200, "val_sequences": 256, "val_every": 20,
    },
    "120m": {
        "layers": 12, "d_model": 768, "heads": 6, "context": 1024,
        "batch": 1024, "micro_batch": 32, "steps": 3000, "val_sequences": 1024, "val_every": 125,
    },
    "350m": {
        "layers": 24, "d_model": 1024, "heads": 32, "context": 1024,
        "batch": 2048, "micro_batch": 16, "steps": 4000, "val_sequences": 1024, "val_every": 125,
    },
    "1.3b": {
        "layers": 24, "d_model": 2048, "heads": 32, "context": 1024,
        "batch": 4096, "micro_batch": 8, "steps": 6000, "val_sequences": 1024, "val_every": 125,
    },
    "3b": {
        "layers": 24, "d_model": 3072, "heads": 32, "context": 1024,
        "batch": 8192, "micro_batch": 4, "steps": 30000, "val_sequences": 1024, "val_every": 250,
    },
}  # fmt: skip

# Torchdion's own optimizers, which take all parameters and run on many processes, have these flags beside others.
_TORCHDION: dict[str, Any] = {
    "betas": None,
    "weight_decay": 0.01,
    "cautious_wd": False,
    "nonfinite": "propagate",
}
# Of those whose algorithm takes matrices alone.
_OF_MATRICES: dict[str, Any] = {
    **_TORCHDION,
    "epsilon": 1e-8,
    "scalar_algorithm": "lion",
    "scalar_lr": None,
}
# Of those whose algorithm takes every parameter, unless another rule is given for embedding and head.
_OF_ENTRIES: dict[str, Any] = {**_TORCHDION, "scalar_algorithm": None, "scalar_lr": None}
# Of those with a power iteration.
_OF_FACTORS: dict[str, Any] = {
    **_OF_MATRICES,
    "lr": 0.01,
    "mu": 0.95,
    "precision": "high",
    "rank_multiple_of": 1,
    "orientation": "right",
    "orthonormalize": "auto",
    "rcqr_oversample": 1.25,
}
# Of those with a Newton–Schulz iteration.
_OF_MUON: dict[str, Any] = {
    **_OF_MATRICES,
    "lr": 0.02,
    "precision": "medium",
    "newton_schulz": "auto",
    "ns_steps": 5,
    "adjust_lr": "spectral_norm",
}
SHARED = ("dist_muon", "dist_adamw")  # whose processes share out the states
TORCHDION = ("dion", "double_dion", "muon", "normuon", "dion2", "dion3", "demo", "lion", "adamw", *SHARED)

# The flags that an optimizer has, and their values unless given.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "dion": {
        **_OF_FACTORS,
        "rank_fraction": 1.0,
        "nesterov": False,
        "error_feedback": True,
        "factorization": "power_iteration",
        "right_factor": "normalized",
        "residual": None,
    },
    "double_dion": {
        **_OF_FACTORS,
        "rank_fraction": 0.25,
        "replicate_mu": 0.999,
        "replicate_rank_fraction": 1 / 128,
        "delayed": False,
    },
    "muon": {**_OF_MUON, "mu": 0.95, "nesterov": True},
    "normuon": {**_OF_MUON, "mu": 0.95, "nesterov": True, "muon_beta2": 0.95},
    "dion2": {**_OF_MUON, "fraction": 0.25, "ef_decay": 0.95, "select": "auto"},
    "dion3": {**_OF_MUON, "fraction": 0.25, "ef_decay": 0.95, "muon_beta2": 0.95},
    "demo": {**_OF_MATRICES, "lr": 0.001, "mu": 0.999, "precision": "high", "chunk_size": 64, "top_k": 32},
    "lion": {**_OF_ENTRIES, "lr": 0.001},
    "adamw": {**_OF_ENTRIES, "lr": 0.002, "epsilon": 1e-8},
    "torch_adamw": {"lr": 0.002, "betas": (0.9, 0.95), "weight_decay": 0.01, "epsilon": 1e-8},
    "torch_muon": {
        "lr": 0.02,
        "adamw_lr": 0.002,
        "mu": 0.95,
        "betas": (0.9, 0.95),
        "weight_decay": 0.01,
        "epsilon": 1e-8,
        "nesterov": True,
        "ns_steps": 5,
        "adjust_lr": "original",
    },
}

# What sentences call them.
TITLES = {
    "dion": "Dion",
    "double_dion": "Double Dion",
    "muon": "Muon",
    "normuon": "NorMuon",
    "dion2": "Dion2",
    "dion3": "Dion3",
    "demo": "DeMo",
    "lion": "Lion",
    "adamw": "AdamW",
    "dist_muon": "DistMuon",
    "dist_adamw": "DistAdamW",
    "torch_adamw": "torch.optim.AdamW",
    "torch_muon": "torch.optim.Muon",
}

OPTIMIZERS["dist_muon"] = OPTIMIZERS["muon"]
OPTIMIZERS["dist_adamw"] = {**_TORCHDION, "lr": 0.002, "epsilon": 1e-8}

# The values of --adjust-lr, of which either Muon has its own.
ADJUST_LR = {
    **dict.fromkeys(
        ("muon", "normuon", "dion2", "dion3", "dist_muon"), ("spectral_norm", "rms_norm", "original", "none")
    ),
    "torch_muon": ("original", "match_rms_adamw"),
}

# 200 steps want larger rates than the paper's thousands.
TINY_RATES: dict[str, dict[str, float]] = {
    "dion": {"lr": 0.02},
    "double_dion": {"lr": 0.02},
    **{name: {"lr": 0.02} for name in ("muon", "normuon", "dion2", "dion3", "dist_muon")},
    "dist_adamw": {"lr": 0.003},
    "demo": {"lr": 0.001, "scalar_lr": 0.01},
    "lion": {"lr": 0.002},
    "adamw": {"lr": 0.003},
    "torch_adamw": {"lr": 0.003},
    "torch_muon": {"lr": 0.02, "adamw_lr": 0.005},
}

GENERAL: dict[str, Any] = {
    "data": STANDARD_LIBRARY,
    "val_data": None,
    "warmup": 0.05,
    "decay": 0.3,
    "clip": 1.0,
    "seed": 0,
}


def hyperparameters(optimizer: str, preset: str) -> dict[str, Any]:
    """The optimizer's own flags with their values for `preset`."""
    if own_optimizer.is_own(optimizer):
        return own_optimizer.hyperparameters(optimizer)
    return OPTIMIZERS[optimizer] | (TINY_RATES[optimizer] if preset == "tiny" else {})


def vocabulary(data: str) -> int:
    """256 for bytes; for token shards GPT-2's 50257, padded as the paper does."""
    return 256 if data == STANDARD_LIBRARY else 50304
