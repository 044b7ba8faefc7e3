"""torch.optim.Muon and AdamW: the same rules, and their state dicts, which continue here."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import torchdion

SHAPES = ((14, 6), (6, 14), (8, 8), (1, 5), (5, 1))
STEPS = 6
ADJUST_LR = {"original": "original", "match_rms_adamw": "rms_norm"}
"""torch's names of what both have, and ours."""


def normal(shape: tuple[int, ...], salt: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(salt), dtype=torch.float64)


def jordan(update: Tensor) -> Tensor:
    """torch.optim._muon's iteration, evaluated in the dtype of its operand."""
    X = update.mT if update.shape[0] > update.shape[1] else update
    X = X / X.norm()
    for _ in range(5):
        A = X @ X.mT
        X = torch.addmm(X, torch.addmm(A, A, A, beta=-4.7750, alpha=2.0315), X, beta=3.4445)
    return X.mT if update.shape[0] > update.shape[1] else X


def as_torch_has_it(X: Tensor, gradients: list[Tensor], options: dict[str, Any]) -> Tensor:
    """The loop of torch.optim.Muon with that iteration, which torch itself evaluates in BF16."""
    X, buffer = X.clone(), torch.zeros_like(X)
    m, n = X.shape
    scale = max(1, m / n) ** 0.5 if options["adjust_lr_fn"] == "original" else 0.2 * max(m, n) ** 0.5
    for G in gradients:
        buffer.lerp_(G, 1 - options["momentum"])
        update = G.lerp(buffer, options["momentum"]) if options["nesterov"] else buffer
        X = X * (1 - options["lr"] * options["weight_decay"]) - options["lr"] * scale * jordan(update)
    return X


def ours(params: Any, options: dict[str, Any], **more: Any) -> torchdion.Muon:
    return torchdion.Muon(
        params, options["lr"], mu=options["momentum"], nesterov=options["nesterov"], newton_schulz="jordan",
        weight_decay=options["weight_decay"], adjust_lr=ADJUST_LR[options["adjust_lr_fn"]], **more,
    )  # fmt: skip


def follow(optimizer: torch.optim.Optimizer, X: Parameter, gradients: list[Tensor]) -> None:
    for G in gradients:
        X.grad = G.to(X.dtype)
        optimizer.step()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("adjust", ADJUST_LR)
def test_in_fp64_steps_are_torchs_algorithm(adjust: str, nesterov: bool, shape: tuple[int, int]) -> None:
    options = {"lr": 0.02, "momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.3, "adjust_lr_fn": adjust}
    start, gradients = normal(shape, 0), [normal(shape, 1 + step) for step in range(STEPS)]
    X = Parameter(start.clone())
    follow(ours([X], options), X, gradients)
    expected = as_torch_has_it(start, gradients, options)
    assert (X.detach() - expected).norm() <= 1e-10 * (expected - start).norm()


@pytest.mark.parametrize("shape", [(24, 10), (10, 24), (64, 64)])
def test_in_bf16_a_step_is_torchs_to_its_rounding(shape: tuple[int, int]) -> None:
    options = {"lr": 1.0, "momentum": 0.9, "nesterov": True, "weight_decay": 0.0, "adjust_lr_fn": "original"}
    G = normal(shape, 1)
    exact = as_torch_has_it(torch.zeros_like(G), [G], options)
    errors = []
    for make in (ours, lambda params, options: torch.optim.Muon(params, **options)):
        X = Parameter(torch.zeros(shape))
        follow(make([X], options), X, [G])
        errors.append(((X.detach().double() - exact).norm() / exact.norm()).item())
    assert errors[0] <= 1.5 * errors[1]
    assert 1e-3 < errors[0] < 0.05  # the rounding of BF16, and not of FP32


def saved(options: dict[str, Any]) -> tuple[Parameter, torch.optim.Muon]:
    X = Parameter(normal((6, 4), 0).float())
    optimizer = torch.optim.Muon([X], **options)
    follow(optimizer, X, [normal((6, 4), 1 + step) for step in range(STEPS)])
    return X, optimizer


@pytest.mark.parametrize("adjust", [None, *ADJUST_LR])
def test_its_state_dict_continues(adjust: str | None) -> None:
    options = {"lr": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.2, "adjust_lr_fn": adjust}
    theirs, before = saved(options)
    X = Parameter(theirs.detach().clone())
    optimizer = torchdion.Muon([X])
    optimizer.load_state_dict(before.state_dict())
    [group] = optimizer.param_groups
    assert (group["lr"], group["mu"], group["weight_decay"], group["newton_schulz"]) == (0.05, 0.8, 0.2, "jordan")
    buffer = before.state[theirs]["momentum_buffer"]
    torch.testing.assert_close(optimizer.state[X]["momentum"], 5 * buffer, rtol=1e-6, atol=0)
    gradients = [normal((6, 4), 50 + step) for step in range(3)]
    start = X.detach().clone()
    follow(optimizer, X, gradients)
    follow(before, theirs, gradients)
    assert (X - theirs).norm() <= 0.03 * (theirs - start).norm()  # two evaluations in BF16


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("ns_coefficients", (2.0, -1.5, 0.5), r"ns_coefficients must be \(3.4445, -4.775, 2.0315\)"),
        ("ns_coefficients", (torch.ones(2), 2.0, 3.0), r"ns_coefficients must be \(3.4445, -4.775, 2.0315\)"),
        ("ns_coefficients", None, r"ns_coefficients must be \(3.4445, -4.775, 2.0315\)"),
        ("adjust_lr_fn", "spectral", "adjust_lr_fn must be None, 'original' or 'match_rms_adamw', got 'spectral'"),
        ("momentum", 1.0, r"momentum must be in \[0, 1\), got 1.0"),
        ("momentum", 10**400, r"momentum must be in \[0, 1\), got .*"),
        ("ns_steps", 0, r"ns_steps must be an integer in \[1, 99\], got 0"),
    ],
)
def test_what_cannot_continue_is_refused_and_nothing_is_loaded(key: str, value: Any, words: str) -> None:
    X, before = saved({"lr": 0.05})
    state_dict = before.state_dict()
    state_dict["param_groups"][0][key] = value
    optimizer = torchdion.Muon([Parameter(X.detach().clone())])
    with pytest.raises(ValueError, match=f"^torchdion.Muon: {words}.* \\(parameter group 0 of the state dict\\)$"):
        optimizer.load_state_dict(state_dict)
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("mu", [0.8, 0.95])
def test_a_buffer_is_scaled_in_no_half(mu: float, dtype: torch.dtype) -> None:
    _, before = saved({"lr": 0.05, "momentum": mu})
    state_dict = before.state_dict()
    buffer = torch.full((6, 4), 4000.0).to(dtype)
    state_dict["state"][0] = {"momentum_buffer": buffer}
    momentum = buffer.float() / (1 - mu)
    for stored, largest in ((torch.float32, float("inf")), (torch.float16, 65504.0)):
        X = Parameter(torch.zeros(6, 4))
        optimizer = torchdion.Muon(
            [X], mixed_precision_config=torchdion.DionMixedPrecisionConfig(momentum_dtype=stored)
        )
        optimizer.load_state_dict(state_dict)
        assert torch.equal(optimizer.state[X]["momentum"], momentum.clamp(max=largest).to(stored))


def test_its_group_is_one_of_muon_in_any_optimizer() -> None:
    X, before = saved({"lr": 0.05})
    for make in (torchdion.Muon, torchdion.Dion):
        own = Parameter(X.detach().clone())
        optimizer = make([{"params": [own], "algorithm": "muon"}])
        optimizer.load_state_dict(before.state_dict())
        assert optimizer.param_groups[0]["algorithm"] == "muon"
        assert optimizer.state[own].keys() == {"step", "momentum"}


def test_a_buffer_counts_and_no_momentum_beside_it() -> None:
    X, before = saved({"lr": 0.05, "momentum": 0.8})
    buffer = before.state[X]["momentum_buffer"]
    states = {"beside": {"momentum_buffer": buffer, "momentum": 0 * buffer}, "alone": {"momentum": buffer, "step": 3.0}}
    for name, state in states.items():
        optimizer = torchdion.Muon([X])
        optimizer.load_state_dict({**before.state_dict(), "state": {0: state}})
        assert torch.equal(optimizer.state[X]["momentum"], buffer / (1 - 0.8) if name == "beside" else buffer)


def freed() -> Tensor:
    tensor = torch.zeros(6, 4)
    tensor.untyped_storage().resize_(0)
    return tensor


BUFFERS: dict[str, tuple[Any, str]] = {
    "sparse": (torch.zeros(6, 4).to_sparse(), "must be a dense floating-point tensor, got torch.float32, torch.sparse"),
    "on meta": (torch.empty(6, 4, device="meta"), "must have memory, got meta without any"),
    "freed": (freed(), "must have memory, got cpu without any"),
    "terabytes": (torch.zeros(1, 1).expand(2**21, 2**21), r"must have that shape, got \[2097152, 2097152\]"),
    "of integers": (torch.zeros(6, 4, dtype=torch.int64), "dense floating-point tensor, got torch.int64"),
    "none": (None, "must be a tensor, got None"),
}


@pytest.mark.parametrize(("buffer", "words"), BUFFERS.values(), ids=BUFFERS)
def test_buffers_that_are_no_momenta_are_refused(buffer: Any, words: str) -> None:
    X, before = saved({"lr": 0.05})
    state_dict = before.state_dict()
    state_dict["state"][0] = {"momentum_buffer": buffer}
    optimizer = torchdion.Muon([Parameter(X.detach().clone())])
    with pytest.raises(ValueError, match=r"^torchdion.Muon: the state momentum of parameter 0 \(.*" + words):
        optimizer.load_state_dict(state_dict)
    assert not optimizer.state


# ---- AdamW ----

ADAMW = {"lr": 0.03, "betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.2, "maximize": True}


def trained_by(make: Any, **options: Any) -> tuple[list[Parameter], torch.optim.Optimizer, list[list[Tensor]]]:
    params = [Parameter(normal((6, 4), 0)), Parameter(normal((5, 1), 1))]
    gradients = [[normal((6, 4), 10 + step), normal((5, 1), 30 + step)] for step in range(STEPS)]
    optimizer = make(params, **options)
    steps(optimizer, params, gradients)
    return params, optimizer, gradients


def steps(optimizer: torch.optim.Optimizer, params: list[Parameter], gradients: list[list[Tensor]]) -> None:
    for of_step in gradients:
        for param, G in zip(params, of_step, strict=True):
            param.grad = G.clone()
        optimizer.step()


@pytest.mark.parametrize(
    ("make", "options"),
    [(torch.optim.AdamW, ADAMW), (torch.optim.AdamW, {"fused": True}), (torch.optim.Adam, {"weight_decay": 0.0})],
    ids=["all options", "fused", "Adam without decay"],
)
@pytest.mark.parametrize("made_by", [torchdion.AdamW, torchdion.Dion], ids=["AdamW", "a group"])
def test_a_state_dict_of_adamw_continues_exactly(made_by: Any, make: Any, options: dict[str, Any]) -> None:
    theirs, before, gradients = trained_by(make, **options)
    start = [param.detach().clone() for param in theirs]
    params = [Parameter(X.clone()) for X in start]
    optimizer = made_by([{"params": params, "algorithm": "adamw"}])
    optimizer.load_state_dict(before.state_dict())
    steps(before, theirs, gradients)
    steps(optimizer, params, gradients)
    for own, other, begin in zip(params, theirs, start, strict=True):
        assert (own - other).norm() <= 1e-10 * (other - begin).norm()
        assert optimizer.state[own].keys() == {"step", "momentum", "variance"}
    [group] = optimizer.param_groups
    assert group["epsilon"] == options.get("eps", 1e-8)
    assert not {"eps", "foreach", "fused", "amsgrad", "decoupled_weight_decay"} & group.keys()


def test_of_vectors_that_adamw_updates_beside_matrices_it_continues_too() -> None:
    b = Parameter(normal((5,), 0))
    before = torch.optim.AdamW([b])
    steps(before, [b], [[normal((5,), 1)]])
    optimizer = torchdion.Dion([b], scalar_algorithm="adamw")
    optimizer.load_state_dict(before.state_dict())
    assert torch.equal(optimizer.state[b]["momentum"], before.state[b]["exp_avg"])
    assert optimizer.param_groups[0]["algorithm"] == "dion"


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (torch.optim.AdamW, {"amsgrad": True}, "amsgrad must be False, got True"),
        (
            torch.optim.Adam,
            {"weight_decay": 0.1},
            "weight_decay must be decoupled, as of torch.optim.AdamW, or 0, got 0.1",
        ),
    ],
)
def test_what_adamw_here_cannot_continue_is_refused(make: Any, options: dict[str, Any], words: str) -> None:
    params, before, _ = trained_by(make, **options)
    optimizer = torchdion.AdamW(params)
    with pytest.raises(ValueError, match=f"^torchdion.AdamW: {words} \\(parameter group 0 of the state dict\\)$"):
        optimizer.load_state_dict(before.state_dict())
    assert not optimizer.state


# ---- options that mean something there and nothing here ----

WITHOUT_EFFECT: list[tuple[str, Any, Any, str]] = [
    ("ns_coefficients", (1.0, 2.0, 3.0), (3.4445, -4.775, 2.0315), "newton_schulz names the coefficients here"),
    ("ns_coefficients", [1.0, 2.0, 3.0], [3.4445, -4.775, 2.0315], "newton_schulz names the coefficients here"),
    ("adjust_lr_fn", "match_rms_adamw", None, "it is adjust_lr here"),
    ("amsgrad", True, False, "AdamW has no maximum of second moments here"),
    ("dampening", 0.1, 0, "no momentum is dampened here"),
    ("decoupled_weight_decay", False, True, "weight decay is decoupled here"),
]


@pytest.mark.parametrize("at_the_door", [False, True])
@pytest.mark.parametrize(("key", "value", "usual", "words"), WITHOUT_EFFECT)
def test_an_option_of_torch_without_effect_here_is_one_warning(
    key: str, value: Any, usual: Any, words: str, at_the_door: bool
) -> None:
    params = [Parameter(normal((6, 4), 0))]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = torchdion.Muon([{"params": params, key: value if at_the_door else usual}])
        assert len(caught) == at_the_door
        for _ in range(2):
            steps(optimizer, params, [[normal((6, 4), 1)]])
            optimizer.param_groups[0][key] = value
    [sentence] = [str(one.message) for one in caught]
    assert sentence.startswith(
        f"torchdion.Muon: the key {key!r} (parameter group 0) is kept and ignored: {words}, got "
    )


def test_decay_that_is_not_decoupled_is_warned_of_once_there_is_some() -> None:
    """torch.optim.Adam's groups have none by default."""
    params = [Parameter(normal((6, 4), 0))]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = torchdion.AdamW(torch.optim.Adam(params).param_groups)
        for decay in (0, 0.1, 0.2):
            optimizer.param_groups[0]["weight_decay"] = decay
            steps(optimizer, params, [[normal((6, 4), 1)]])
            assert len(caught) == (decay > 0)
    assert "weight decay is decoupled here, got False" in str(caught[0].message)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Muon])
def test_groups_of_torch_with_its_defaults_say_nothing(make: Any) -> None:
    [group] = make([Parameter(normal((6, 4), 0))]).param_groups
    torchdion.Muon([{**group, "eps": None}])
