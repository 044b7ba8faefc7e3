"""On a GPU: operations equal the CPU's, parameters take the CPU's steps, and no step waits for the device."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from on_gpu import SHAPES, distance, give_gradients, needs_gpu, normal, sync_is_an_error, trained
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import torchdion
from torchdion import _C

pytestmark = needs_gpu

ROUNDING = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


# ---- operations ----


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("shape", [(5, 3), (2, 700, 65), (1, 129, 256)], ids=str)
def test_columns_are_normalized_as_on_the_cpu_and_zero_ones_stay(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    R, Q = normal(*shape, dtype=dtype), normal(*shape, seed=1, dtype=dtype)
    R[..., 1] = 0
    expected = torch.ops.torchdion.column_normalize(R, Q)
    assert distance(torch.ops.torchdion.column_normalize(R.cuda(), Q.cuda()), expected) <= 2 * ROUNDING[dtype]


@pytest.mark.parametrize("method", ["auto", "rcqr", "cholesky_qr", "qr"])
@pytest.mark.parametrize("shape", [(4, 1), (3, 200, 40), (500, 64), (2, 400, 193)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_factors_are_orthonormal_and_the_cpus_up_to_sign(
    shape: tuple[int, ...], dtype: torch.dtype, method: str
) -> None:
    P = normal(*shape, dtype=dtype)
    found = torch.ops.torchdion.orthonormalize(P.cuda(), method).cpu().double()
    expected = torch.ops.torchdion.orthonormalize(P, method).double()
    identity = torch.eye(shape[-1], dtype=torch.float64)
    assert (found.mT @ found - identity).abs().max() <= 64 * ROUNDING[dtype]
    assert distance(found * (found * expected).sum(-2, keepdim=True).sign(), expected) <= 1e3 * ROUNDING[dtype]


@pytest.mark.parametrize(("precision", "allowed"), [("highest", 1e-5), ("high", 2e-3), ("medium", 1e-2)])
def test_factors_of_rounded_operands_are_orthonormal(precision: str, allowed: float) -> None:
    P = normal(2, 700, 130, dtype=torch.float32)
    found = torch.ops.torchdion.orthonormalize(P.cuda(), precision=precision).cpu().double()
    identity = torch.eye(130, dtype=torch.float64)
    assert torch.linalg.matrix_norm(found.mT @ found - identity, 2).max() <= allowed


def test_columns_without_signal_become_zero() -> None:
    P = normal(300, 3, dtype=torch.float32) @ normal(3, 100, seed=1, dtype=torch.float32)
    found = torch.ops.torchdion.orthonormalize(P.cuda(), "auto", noise=1e-6)
    assert int(found.any(dim=0).sum()) == 3


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("offsets", [(0, 0), (3, 5)], ids=str)
def test_sketches_are_the_cpus(offsets: tuple[int, int], dtype: torch.dtype) -> None:
    here, there = torch.empty(50, 77, dtype=dtype), torch.empty(50, 77, dtype=dtype, device="cuda")
    for out in (here, there):
        torch.ops.torchdion.sketch_(out, 7, 3, *offsets)
    assert torch.equal(there.cpu(), here)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("by_columns", [False, True])
def test_products_are_the_cpus(by_columns: bool, dtype: torch.dtype) -> None:
    def laid_out(tensor: Tensor) -> Tensor:
        return tensor.mT.contiguous().mT if by_columns else tensor

    A = [laid_out(normal(130, 70, seed=i, dtype=dtype)) for i in range(3)]
    B = [normal(70, 90, seed=3 + i, dtype=dtype) for i in range(3)]
    C = [laid_out(normal(130, 90, seed=6 + i, dtype=dtype)) for i in range(3)]
    on_gpu = [[tensor.cuda() for tensor in each] for each in (C, A, B)]
    torch.ops.torchdion.gemm_(C, A, B, alpha=-0.5, beta=0.25)
    torch.ops.torchdion.gemm_(*on_gpu, alpha=-0.5, beta=0.25)
    for found, expected in zip(on_gpu[0], C, strict=True):
        assert distance(found, expected) <= 16 * ROUNDING[dtype]


@pytest.mark.parametrize("depth", [8, 64, 136, 192], ids=str)
def test_updates_by_narrow_bfloat16_factors_are_products(depth: int) -> None:
    """By tensor cores, of the entries in whole tiles and in parts of one."""
    A, B = normal(3, 260, depth, dtype=torch.bfloat16), normal(3, 340, depth, seed=1, dtype=torch.bfloat16)
    C = normal(3, 260, 340, seed=2, dtype=torch.float32)
    expected = 0.75 * C.double() - 0.5 * A.double() @ B.double().mT
    found = C.cuda()
    torch.ops.torchdion.gemm_(list(found), list(A.cuda()), list(B.cuda().mT), alpha=-0.5, beta=0.75)
    error = (found.cpu().double() - expected).abs()
    assert (error <= 1e-6 * (C.double().abs() + A.double().abs() @ B.double().abs().mT)).all()


# ---- the first step ----


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_Q_starts_with_the_bits_of_the_cpus(dtype: torch.dtype) -> None:
    starts = [starts_of_Q(device, dtype) for device in ("cpu", "cuda")]
    assert len(starts[0]) == 5
    for name, expected in starts[0].items():
        assert starts[1][name].is_cuda, name
        assert torch.equal(starts[1][name].cpu(), expected), name


def starts_of_Q(device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    _, optimizer = trained(device, dtype, 0)
    give_gradients(optimizer, 0)
    optimizer._core.make_states(optimizer)
    states = {
        name: optimizer.state[group["params"][0]] for name, group in zip(SHAPES, optimizer.param_groups, strict=True)
    }
    return {name: state["Q"] for name, state in states.items() if "Q" in state}


def test_the_first_step_copies_no_matrix_to_the_device(tmp_path: Path) -> None:
    params = [nn.Parameter(torch.zeros(shape, device="cuda")) for shape in [(3, 512, 512), (1024, 512)]]
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer = torchdion.Dion([{"params": params[:1], "batch_dims": 1}, {"params": params[1:]}])
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        optimizer.step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events), "the profiler saw the device"
    copied = sum(event["args"]["bytes"] for event in events if "HtoD" in event.get("name", ""))
    assert copied < 64 * 1024, "the smallest Q has 2 MB"


# ---- steps ----


@pytest.mark.parametrize("orthonormalize", ["auto", "rcqr", "qr"])
@pytest.mark.parametrize("orientation", ["right", "left"])
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=str)
def test_steps_are_the_cpus(dtype: torch.dtype, allowed: float, orientation: str, orthonormalize: str) -> None:
    options = {"orientation": orientation, "orthonormalize": orthonormalize, "precision": "highest"}
    start, _ = trained("cpu", dtype, 0, **options)
    expected, _ = trained("cpu", dtype, 20, **options)
    found, _ = trained("cuda", dtype, 20, **options)
    for name in SHAPES:
        travelled = expected[name] - start[name]
        assert distance(found[name].cpu() - start[name], travelled) <= allowed, name


@pytest.mark.parametrize("newton_schulz", ["jordan", "polar_express", "gram", "auto"])
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=str)
def test_steps_of_muon_are_the_cpus(dtype: torch.dtype, allowed: float, newton_schulz: str) -> None:
    options = {"newton_schulz": newton_schulz, "precision": "highest"}
    start, _ = trained("cpu", dtype, 0, torchdion.Muon, **options)
    expected, _ = trained("cpu", dtype, 20, torchdion.Muon, **options)
    found, _ = trained("cuda", dtype, 20, torchdion.Muon, **options)
    for name in SHAPES:
        travelled = expected[name] - start[name]
        assert distance(found[name].cpu() - start[name], travelled) <= allowed, name


@pytest.mark.parametrize("shape", [(1032, 1040), (520, 2088), (2088, 520)], ids=str)
@pytest.mark.parametrize("algorithm", [torchdion.Muon, torchdion.NorMuon])
def test_symmetric_products_of_large_matrices_move_weights_as_on_the_cpu(
    algorithm: type[torchdion.Muon], shape: tuple[int, int]
) -> None:
    """So many matrices that a GPU's kernel for symmetric products takes them; rounded to BF16 in another order."""
    moved, launches = {}, []
    for device in ("cpu", "cuda"):
        params = [nn.Parameter(torch.zeros(shape, device=device)) for _ in range(16)]
        for i, param in enumerate(params):
            param.grad = torch.randn(shape, generator=torch.Generator().manual_seed(i)).to(device)
        optimizer = algorithm(params, lr=1.0, precision="medium")
        launches += _C.launches_of(optimizer.step, "cuda")
        moved[device] = torch.stack([param.detach().cpu() for param in params])
    assert distance(moved["cuda"], moved["cpu"]) <= 0.1
    generation = "sm{}{}".format(*torch.cuda.get_device_capability())
    has_kernel = generation in torchdion.build["symmetric_products"].split(";")
    assert ("symmetric BF16" in [row.get("name") for row in launches]) == has_kernel


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_momenta_of_muon_have_the_bits_of_the_cpus(dtype: torch.dtype) -> None:
    of_muon = ("tall", "wide", "stack", "fused", "convolution")
    momenta = []
    for device in ("cpu", "cuda"):
        _, optimizer = trained(device, dtype, 5, torchdion.Muon)
        states = zip(SHAPES, optimizer.state.values(), strict=True)
        momenta.append({name: state["momentum"].cpu() for name, state in states if name in of_muon})
    for name in of_muon:
        assert torch.equal(momenta[1][name], momenta[0][name]), name


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [
        *((torch.float32, precision) for precision in ("high", "highest", "medium")),
        *((torch.bfloat16, "medium"), (torch.float64, "high")),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(256, 128), (191, 67)], ids=str)
def test_steps_have_the_same_bits_wherever_tensors_lie(
    shape: tuple[int, ...], dtype: torch.dtype, precision: str
) -> None:
    expected = steps_on_shifted_tensors(0, shape, dtype, precision)
    for elements in (1, 4, 8, 16, 32, 64):
        found = steps_on_shifted_tensors(elements, shape, dtype, precision)
        assert all(map(torch.equal, found, expected)), f"{elements} elements from where allocations begin"


def steps_on_shifted_tensors(
    elements: int, shape: tuple[int, ...], dtype: torch.dtype, precision: str, device: str = "cuda"
) -> list[Tensor]:
    """The weights after two steps in which every tensor begins so many elements after its allocation."""

    def shifted(tensor: Tensor) -> Tensor:
        memory = torch.empty(elements + tensor.numel(), dtype=tensor.dtype, device=device)
        return memory[elements:].view(tensor.shape).copy_(tensor)

    params = [nn.Parameter(shifted(normal(*shape, seed=i, dtype=dtype))) for i in range(3)]
    optimizer = torchdion.Dion(params, lr=0.05, rank_fraction=0.5, precision=precision)
    for step in range(2):
        for i, param in enumerate(params):
            param.grad = shifted(normal(*shape, seed=10 * step + i + 3, dtype=dtype))
        optimizer.step()
        for state in optimizer.state.values():
            state.update({name: shifted(state[name]) for name in ("momentum", "Q")})
    return [param.detach() for param in params]


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_rounded_products_stay_close(precision: str) -> None:
    start, _ = trained("cpu", torch.float32, 0)
    expected, _ = trained("cpu", torch.float32, 1)
    found, _ = trained("cuda", torch.float32, 1, precision=precision)
    for name in SHAPES:
        travelled = expected[name] - start[name]
        assert distance(found[name].cpu() - start[name], travelled) <= {"high": 0.02, "medium": 0.2}[precision], name


@pytest.mark.parametrize("shape", [(260, 340), (340, 260), (2, 128, 256)], ids=str)
@pytest.mark.parametrize("feeds_back", [True, False])
@pytest.mark.parametrize("residual", ["scaled", "sign"])
@pytest.mark.parametrize(("precision", "allowed"), [("highest", 1e-3), ("high", 0.1), ("medium", 0.25)])
def test_what_the_rank_leaves_moves_weights_as_on_the_cpu(
    precision: str, allowed: float, residual: str, feeds_back: bool, shape: tuple[int, ...]
) -> None:
    """In parts; and in one pass, by products of TF32 and of BF16, of entries in whole tiles and in parts of one."""
    travelled = {}
    for device in ("cpu", "cuda"):
        start = normal(*shape, seed=1, dtype=torch.float32)
        weight = nn.Parameter(start.to(device))
        weight.grad = normal(*shape, seed=2, dtype=torch.float32).to(device)
        options = {"rank_fraction": 0.25, "rank_multiple_of": 8, "nesterov": True, "error_feedback": feeds_back}
        torchdion.Dion(
            [{"params": [weight], "batch_dims": len(shape) - 2}],
            lr=0.1,
            residual=residual,
            precision="highest" if device == "cpu" else precision,
            **options,
        ).step()
        travelled[device] = weight.detach().cpu() - start
    assert distance(travelled["cuda"], travelled["cpu"]) <= allowed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_states_train(dtype: torch.dtype) -> None:
    config = torchdion.DionMixedPrecisionConfig(momentum_dtype=dtype, Q_dtype=dtype)
    found, optimizer = trained("cuda", torch.float32, 5, mixed_precision_config=config)
    expected, _ = trained("cpu", torch.float32, 5, mixed_precision_config=config)
    for name in SHAPES:
        assert distance(found[name], expected[name]) <= 0.05, name
    assert optimizer.state[optimizer.param_groups[0]["params"][0]]["momentum"].dtype == dtype


def test_a_checkpoint_moves_between_devices() -> None:
    _, here = trained("cpu", torch.float64, 3, precision="highest")
    _, there = trained("cuda", torch.float64, 3, precision="highest")
    there.load_state_dict(here.state_dict())
    for group, other in zip(there.param_groups, here.param_groups, strict=True):
        state, expected = there.state[group["params"][0]], here.state[other["params"][0]]
        assert all(torch.equal(state[key].cpu(), expected[key]) for key in expected)
        assert state["momentum"].is_cuda


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("moves", [("cuda",), ("cpu", "cuda")], ids=str)
def test_states_that_loaders_move_counters_and_all_go_on(moves: tuple[str, ...], capturable: bool) -> None:
    expected, reference = trained("cuda", torch.float32, 2, capturable=capturable)
    found, optimizer = trained("cuda", torch.float32, 2, capturable=capturable)
    for device in moves:
        for state in optimizer.state.values():
            state.update({key: value.to(device) for key, value in state.items()})
    for each in (reference, optimizer):
        give_gradients(each, 2)
        each.step()
    for name in SHAPES:
        assert torch.equal(found[name], expected[name]), name
    for state in optimizer.state.values():
        assert (float(state["step"]), state["step"].is_cuda) == (3, capturable)
    with sync_is_an_error():  # moved once
        optimizer.step()


@pytest.mark.parametrize("nonfinite", ["propagate", "zero"])
def test_the_host_does_not_wait_for_the_device(nonfinite: str) -> None:
    _, optimizer = trained("cuda", torch.float32, 2, nonfinite=nonfinite)
    optimizer.param_groups[0]["params"][0].grad[3, 4] = float("nan") if nonfinite == "zero" else 1.0
    with sync_is_an_error():
        optimizer.step()
    assert optimizer.stats()["nonfinite_entries"] == (nonfinite == "zero")


def test_columns_without_signal_are_counted_on_the_device() -> None:
    X = nn.Parameter(torch.ones(80, 100, device="cuda"))
    optimizer = torchdion.Dion([X])
    for _ in range(3):
        X.grad = torch.ones_like(X)
        optimizer.step()
    assert optimizer.stats()["columns_without_signal"] == 3 * 79, "the gradients have rank one"


@pytest.mark.parametrize(("nonfinite", "outcome"), [("skip_step", None), ("raise", ValueError)])
def test_policies_that_look_before_they_write(nonfinite: str, outcome: type[Exception] | None) -> None:
    weights, optimizer = trained("cuda", torch.float32, 1, nonfinite=nonfinite)
    before = {name: weight.clone() for name, weight in weights.items()}
    optimizer.param_groups[1]["params"][0].grad[0, 0] = float("inf")
    step: Callable[[], Any] = optimizer.step
    if outcome is None:
        step()
    else:
        with pytest.raises(outcome, match="NaN or infinite"):
            step()
    assert all(torch.equal(weight, before[name]) for name, weight in weights.items())
