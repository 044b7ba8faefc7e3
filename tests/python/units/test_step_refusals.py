"""What is wrong in the last of many parameters, or was written into a group by hand, is refused before any write."""

import math

import pytest
import torch
from refused import assert_refused_before_any_write, trained, untrained
from refused_options import GROUP_REFUSED, REFUSED

import torchdion
from torchdion.options import options_of_group
from torchdion.table import ALGORITHMS

OPTIONS = {**REFUSED, **GROUP_REFUSED}


@pytest.mark.parametrize("make", [trained, untrained])
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_written_into_the_last_group_by_hand_is_refused_at_the_step(name, make):
    params, optimizer = make()
    kept = dict(optimizer.param_groups[-1])
    for value in OPTIONS[name][1]:
        optimizer.param_groups[-1][name] = value
        assert_refused_before_any_write(
            params, optimizer, ValueError, rf"^torchdion.Dion: {name} must be .* \(parameter group 4\)$"
        )
    optimizer.param_groups[-1].clear()
    optimizer.param_groups[-1] |= kept
    optimizer.step()


@pytest.mark.parametrize("name", sorted(options_of_group(trained()[1].param_groups[-1])))
def test_an_option_deleted_from_a_group_is_refused_at_the_step(name):
    params, optimizer = trained()
    del optimizer.param_groups[-1][name]
    assert_refused_before_any_write(
        params, optimizer, ValueError, rf"^torchdion.Dion: {name} must be in the group, which lacks it \(parameter gr"
    )


def test_options_that_exclude_each_other_or_the_shape_are_refused_at_the_step():
    for make in (trained, untrained):
        params, optimizer = make()
        optimizer.param_groups[-1]["blocks"] = 3
        assert_refused_before_any_write(params, optimizer, ValueError, "^torchdion.Dion: blocks must divide the 5 rows")
        optimizer.param_groups[-1]["fan_in_first"] = True
        assert_refused_before_any_write(params, optimizer, ValueError, "^torchdion.Dion: blocks cannot be combined")
        optimizer.param_groups[-1] |= {"blocks": 1, "fan_in_first": False, "betas": None}
        optimizer.step()  # None is the algorithm's own


@pytest.mark.parametrize(
    "step",
    [
        torch.tensor(math.nan),
        torch.tensor(-1.0),
        torch.tensor(1.0, dtype=torch.float16),
        torch.tensor(True),
        torch.tensor([1.0, 2.0]),
        torch.zeros(0),
        2,
        "two",
    ],
    ids=str,
)
@pytest.mark.parametrize("index", range(5))
def test_a_step_that_counts_nothing_is_refused_before_any_write(index, step):
    """The counters are written last: after every parameter."""
    params, optimizer = trained()
    optimizer.state[params[index]]["step"] = step
    assert_refused_before_any_write(params, optimizer, ValueError, r"^torchdion.Dion: the state '?step")


CHANGES = {
    "another shape": (
        lambda X: setattr(X, "data", torch.zeros(4, 5)),
        "the gradient of a parameter of shape .4, 5. must .* got .5, 4.|gradient of shape .5, 4. does not fit",
    ),
    "one dimension": (
        lambda X: setattr(X, "data", torch.zeros(20)),
        r"the gradient of a parameter of shape .20.|the algorithm of parameter 0 .* of shape .20. must stay '\w+'",
    ),
    "shape and gradient": (
        lambda X: (setattr(X, "data", torch.zeros(4, 5)), setattr(X, "grad", torch.zeros(4, 5))),
        "momentum of a parameter of shape .4, 5. must .* got (shape )?.5, 4.",
    ),
    "complex": (
        lambda X: setattr(X, "data", torch.zeros(5, 4, dtype=torch.complex64)),
        "must be real floating-point, got torch.complex64",
    ),
    "one row": (lambda X: setattr(X, "data", torch.zeros(4).expand(5, 4)), "must not share memory"),
    "overlapping rows": (lambda X: setattr(X, "data", torch.zeros(20).as_strided((5, 4), (2, 1))), "must not share"),
    "freed": (lambda X: X.untyped_storage().resize_(0), "the storage of a parameter of shape .5, 4. must hold its 80"),
    "a freed gradient": (lambda X: X.grad.untyped_storage().resize_(4), "the storage of the gradient .* got 4"),
    "a sparse gradient": (lambda X: setattr(X, "grad", X.detach().to_sparse()), "gradients must be dense"),
    "a complex gradient": (
        lambda X: (
            setattr(X, "data", torch.zeros(5, 4, dtype=torch.complex64)),
            setattr(X, "grad", torch.zeros(5, 4, dtype=torch.complex64)),
            setattr(X, "data", torch.zeros(5, 4)),
        ),
        "gradients must be real",
    ),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("change", CHANGES)
def test_the_last_parameter_changed_for_the_worse_is_refused_before_any_write(change, algorithm):
    error = RuntimeError if "sparse" in change else ValueError  # as torch
    params, optimizer = trained(algorithm)
    apply, sentence = CHANGES[change]
    apply(params[-1])
    if change == "freed":  # its weights cannot be read to compare them
        with pytest.raises(error, match=sentence):
            optimizer.step()
        assert_refused_before_any_write(params[:-1], optimizer, error, sentence)
    else:
        assert_refused_before_any_write(params, optimizer, error, sentence)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_parameter_moved_to_another_dtype_goes_on_from_its_state(algorithm, dtype):
    """As model.to(dtype) does, which sets param.data; the states keep their dtype."""
    generator = torch.Generator().manual_seed(0)
    starts, gradients = torch.randn(6, 4, generator=generator), torch.randn(4, 6, 4, generator=generator)
    runs = []
    for moved in (False, True):
        X = torch.nn.Parameter(starts.to(dtype).float())
        group = {"params": [X], "algorithm": algorithm}
        optimizer = torchdion.Dion([group], lr=0.1, rank_fraction=0.5, precision="highest")
        for index, G in enumerate(gradients):
            if moved and index == 2:
                X.data, X.grad = X.data.to(dtype), None
            X.grad = G.to(dtype).to(X.dtype)
            optimizer.step()
        assert optimizer.state[X]["momentum"].dtype == torch.float32
        assert X.dtype == (dtype if moved else torch.float32)
        runs.append(X.detach().double())
    bound = 1e-5 if dtype == torch.float64 else 8 * torch.finfo(dtype).eps
    assert (runs[0] - runs[1]).abs().max() <= bound * runs[0].abs().max()


@pytest.mark.parametrize("shape", [(6, 4), (7,)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_parameter_moved_in_memory_is_followed(algorithm, shape):
    """param.data = a copy elsewhere, with other strides."""
    results = []
    for moved in (False, True):
        X = torch.nn.Parameter(torch.ones(shape))
        optimizer = torchdion.Dion([{"params": [X], "algorithm": algorithm}], rank_fraction=0.5)
        for step in range(4):
            if moved and step == 2:
                X.data = torch.zeros(2, *reversed(shape)).mT[1].copy_(X) if X.dim() == 2 else X.detach().clone()
            X.grad = torch.arange(X.numel(), dtype=torch.float32).reshape(shape).sin() + step
            optimizer.step()
        results.append(X.detach())
    assert torch.allclose(*results, rtol=1e-6, atol=1e-7)
    assert not torch.equal(results[0], torch.ones(shape))


@pytest.mark.parametrize("shape", [(6, 4), (3, 5, 4), (7,)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("nonfinite", ["propagate", "zero", "skip_step"])
def test_a_gradient_with_the_negative_bit_is_the_negative_that_it_shows(nonfinite, algorithm, shape):
    """conj().imag gives such tensors: their memory holds the opposite sign."""
    results = []
    for view in (torch.neg, torch._neg_view):
        X = torch.nn.Parameter(torch.zeros(shape))
        X.grad = view(torch.arange(X.numel(), dtype=torch.float32).reshape(shape) - 5)
        assert X.grad.is_neg() == (view is torch._neg_view)
        group = {"params": [X], "algorithm": algorithm, "batch_dims": 0}
        torchdion.Dion([group], nonfinite=nonfinite).step()
        results.append(X.detach())
    assert results[0].abs().max() > 0
    assert torch.equal(*results)


@pytest.mark.parametrize("nonfinite", ["raise", "skip_step"])
def test_the_first_step_that_is_refused_or_left_out_writes_nothing(nonfinite):
    params, optimizer = untrained(nonfinite=nonfinite)
    params[-1].grad[4, 3] = math.nan
    if nonfinite == "raise":
        assert_refused_before_any_write(params, optimizer, ValueError, "^torchdion.Dion: 1 gradient entries are NaN")
        assert not optimizer.state
    else:
        weights = [param.detach().clone() for param in params]
        optimizer.step()
        assert all(map(torch.equal, params, weights))
        assert {float(state["step"]) for state in optimizer.state.values()} == {0.0}
        assert not any(state["momentum"].any() for state in optimizer.state.values())


def test_a_refused_first_step_leaves_no_state_from_options_that_change_before_the_next():
    params, optimizer = untrained(rank_fraction=0.5)
    params[-1].grad = params[-1].detach().to_sparse()
    assert_refused_before_any_write(params, optimizer, RuntimeError, "gradients must be dense")
    params[-1].grad = torch.ones(5, 4)
    optimizer.param_groups[0]["rank_fraction"] = 1.0
    optimizer.step()
    assert optimizer.state[params[0]]["Q"].shape == (6, 4)
