"""A parameter that cannot be trained, or is frozen, is left alone until it gets a gradient, and is refused then."""

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from frozen import KINDS, WITHOUT_GRADIENTS, frozen
from refused import assert_refused_before_any_write, matrix
from torch.nn import Parameter

import torchdion
from torchdion.table import ALGORITHMS

pytestmark = pytest.mark.filterwarnings("ignore:.*(Sparse CSR|nested tensors)")

FORMS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "stacks": {"batch_dims": 1},
    "named": {"algorithm": "dion", "batch_dims": 0},
    "blocks": {"blocks": 4},
    "split sizes": {"split_sizes": [2, 2]},
    "dimensions that are kept": {"flatten": False},
}


def trained_beside(param: Parameter, **group: Any) -> tuple[Parameter, torchdion.Dion]:
    X = Parameter(torch.ones(4, 4))
    X.grad = torch.eye(4)
    return X, torchdion.Muon([{"params": [("odd", param), ("X", X)], **group}], lr=0.1)


@pytest.mark.parametrize("kind", [*KINDS, *WITHOUT_GRADIENTS])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_training_beside_one_is_the_training_without(kind, algorithm):
    odd, X, twin = frozen(kind), Parameter(torch.ones(6, 4)), Parameter(torch.ones(6, 4))
    optimizer = torchdion.Dion([{"params": [X, odd], "algorithm": algorithm}], lr=0.1)
    reference = torchdion.Dion([{"params": [twin], "algorithm": algorithm}], lr=0.1)
    for _ in range(2):
        for each, param in ((optimizer, X), (reference, twin)):
            param.grad = torch.arange(24.0).reshape(6, 4).sin()
            each.step()
    assert torch.equal(X, twin)
    assert not torch.equal(X, torch.ones(6, 4))
    assert set(optimizer.state) == {X}
    assert optimizer.stats()["parameters"] == {algorithm: 1}


@pytest.mark.parametrize("kind", [*KINDS, *WITHOUT_GRADIENTS])
@pytest.mark.parametrize("form", FORMS)
def test_what_a_group_says_of_matrices_is_not_asked_of_it(kind, form):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        X, optimizer = trained_beside(frozen(kind, (3, 2, 5) if "rows" not in kind else (3, 2)), **FORMS[form])
    optimizer.step()
    assert not torch.equal(X, torch.ones(4, 4))


@pytest.mark.parametrize("kind", [*KINDS, *WITHOUT_GRADIENTS])
def test_all_methods_pass_it_over(kind):
    odd, X = frozen(kind), matrix()
    optimizer = torchdion.Dion([X], rank_fraction=0.5)
    optimizer.add_param_group({"params": [odd]})
    X.grad = torch.ones(6, 4)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    assert saved["state"].keys() == {0}
    optimizer.load_state_dict(saved)
    assert optimizer.whole_state_dict()["state"].keys() == {0}
    optimizer.resize_rank(0.25)
    assert optimizer.state[X]["Q"].shape == (6, 1)
    if kind in ("int64", "complex", "meta", "jagged", "nested"):  # others torch itself copies or pickles not
        for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
            copied.param_groups[0]["params"][0].grad = torch.ones(6, 4)
            copied.step()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_stepped", [False, True])
def test_it_is_refused_by_name_before_any_write_once_it_has_a_gradient(kind, has_stepped):
    _, error, sentence = KINDS[kind]
    odd = frozen(kind)
    X, optimizer = trained_beside(odd)
    if has_stepped:
        optimizer.step()
    odd.grad = odd.detach().clone()
    match = rf"^torchdion.Muon: parameter 'odd' \(parameter group 0\) {sentence}$"
    assert_refused_before_any_write([X], optimizer, error, match)
    assert odd not in optimizer.state
    odd.grad = None
    optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_refused_at_the_door_where_it_has_or_asks_for_a_gradient(kind):
    make, error, sentence = KINDS[kind]
    match = rf"^torchdion.Dion: parameter 1 \(parameter group 0\) {sentence}$"
    odd = frozen(kind)
    odd.grad = odd.detach().clone()
    given = [odd]
    if odd.is_floating_point() or odd.is_complex():
        given.append(Parameter(make(torch.ones(6, 4))))
    for param in given:
        with pytest.raises(error, match=match):
            torchdion.Dion([matrix(), param])


def test_a_state_that_is_saved_for_it_is_refused():
    X, twin = matrix(), frozen("uint8")
    optimizer, other = torchdion.Dion([X]), torchdion.Dion([twin])
    X.grad = torch.ones(6, 4)
    optimizer.step()
    with pytest.raises(
        ValueError, match=r"^torchdion.Dion: parameter 0 .* must be real floating-point, got torch.uint8"
    ):
        other.load_state_dict(optimizer.state_dict())
    assert not other.state


def test_a_frozen_matrix_is_asked_for_its_form_once_it_has_a_gradient():
    odd = Parameter(torch.ones(5, 4), requires_grad=False)
    X, optimizer = trained_beside(odd, blocks=2)
    optimizer.step()
    assert optimizer.stats()["parameters"] == {"muon": 2}  # it may be unfrozen
    odd.grad = torch.ones(5, 4)
    sentence = r"^torchdion.Muon: blocks must divide the 5 rows of parameter 'odd' \(parameter group 0\), got 2$"
    assert_refused_before_any_write([X, odd], optimizer, ValueError, sentence)
    odd.requires_grad_()
    with pytest.raises(ValueError, match=r"^torchdion.Muon: blocks must divide the 5 rows of parameter 0"):
        torchdion.Muon([{"params": [odd], "blocks": 2}])


@pytest.mark.parametrize(("shape", "dims"), [((6, 4), 3), ((6, 4), 9), ((4,), 2), ((), 1)])
def test_batch_dims_that_a_parameter_does_not_have_are_refused(shape, dims):
    sentence = (
        rf"^torchdion.Dion: batch_dims must be at most the number of dimensions of parameter 1 \(parameter group 0\) "
        rf"of shape \({', '.join(map(str, shape))},?\), got {dims}$"
    )
    param, stack = Parameter(torch.zeros(shape)), Parameter(torch.zeros((2,) * (dims + 2)))
    with pytest.raises(ValueError, match=sentence):
        torchdion.Dion([{"params": [stack, param], "batch_dims": dims}])
    torchdion.Dion([{"params": [param], "batch_dims": dims, "algorithm": "lion"}])  # where nothing counts matrices
    later = Parameter(param.detach().clone(), requires_grad=False)
    for group in ({"batch_dims": dims}, {}):  # given to a frozen one, and written later
        optimizer = torchdion.Dion([{"params": [stack, later], **({"batch_dims": 0} | group)}])
        optimizer.param_groups[0]["batch_dims"] = dims
        optimizer.step()
        later.grad = torch.ones(shape)
        assert_refused_before_any_write([stack, later], optimizer, ValueError, sentence)
        later.grad = None


@pytest.mark.parametrize(("shape", "dims"), [((3, 6, 4), 1), ((3, 4), 1), ((3,), 1), ((3, 4), 2)])
def test_a_group_of_stacks_may_have_what_has_a_number_or_a_vector_for_each(shape, dims):
    param, stack = Parameter(torch.zeros(shape)), Parameter(torch.zeros((3,) * dims + (6, 4)))
    for X in (param, stack):
        X.grad = torch.ones_like(X)
    optimizer = torchdion.Dion([{"params": [stack, param], "batch_dims": dims}])
    optimizer.step()
    assert bool(param.detach().any())
    assert ("Q" in optimizer.state[param]) == (len(shape) - dims >= 2)
