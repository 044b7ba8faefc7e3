"""Parameters, gradients and states that no algorithm can update are refused before anything changes."""

import copy
import warnings

import numpy
import pytest
import torch
from refused import assert_refused_before_any_write, matrix, trained
from runs import follow
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

import torchdion


@pytest.mark.parametrize(
    ("param", "error", "sentence"),
    [
        (
            Parameter(torch.zeros(3, 3, dtype=torch.complex64)),
            ValueError,
            "must be real floating-point, got torch.comp",
        ),
        (Parameter(torch.zeros(3, 3).to(torch.float8_e4m3fn)), ValueError, "must be real floating-point, got torch.fl"),
        (Parameter(torch.zeros(3, 3, device="meta")), NotImplementedError, "is on meta, which this build has no kern"),
        (Parameter(torch.eye(3).to_sparse()), ValueError, "must be dense, got torch.sparse_coo"),
        (Parameter(torch.eye(3).to_sparse_csr()), ValueError, "must be dense, got torch.sparse_csr"),
        (Parameter(torch.nested.nested_tensor([torch.eye(3)])), ValueError, "must be dense, got nested"),
        (numpy.zeros((3, 3)), TypeError, "must be a tensor, got ndarray"),
        ("weight", TypeError, "must be a tensor, got str"),
        (None, TypeError, "must be a tensor, got NoneType"),
    ],
    ids=lambda value: str(value)[:24].replace("\n", ""),
)
def test_a_parameter_that_cannot_be_updated_is_refused_at_construction(param, error, sentence):
    with pytest.raises(error, match=rf"^torchdion.Dion: parameter 1 \(parameter group 0\) {sentence}"):
        torchdion.Dion([matrix(), param])
    optimizer = torchdion.Dion([matrix()])
    with pytest.raises(error, match=rf"^torchdion.Dion: parameter 'layer.weight' \(parameter group 1\) {sentence}"):
        optimizer.add_param_group({"params": [("layer.weight", param)]})
    assert len(optimizer.param_groups) == 1


def test_a_parameter_of_two_groups_is_refused():
    X = matrix()
    with pytest.raises(ValueError, match=r"more than one"):
        torchdion.Dion([{"params": [X]}, {"params": [X]}])


@pytest.mark.parametrize("named", [False, True])
def test_a_parameter_given_twice_to_a_group_is_warned_of_and_updated_once(named):
    X, Y = matrix(), matrix()
    params = [("X", X), ("Y", Y), ("again", X)] if named else [X, Y, X]
    again = "'again'" if named else "2"
    sentence = (
        "^torchdion.Dion: the optimizer contains a parameter group with duplicate parameters: "
        rf"parameter {again} \(parameter group 0\) is given twice and updated once$"
    )
    with pytest.warns(UserWarning, match=sentence):
        optimizer = torchdion.Dion(params)
    twin = torchdion.Dion([("X", matrix()), ("Y", matrix())] if named else [matrix(), matrix()])
    for each in (optimizer, twin):
        for param in each.param_groups[0]["params"]:
            param.grad = torch.ones_like(param)
        each.step()
    assert optimizer.state[X]["step"] == 1
    assert torch.equal(X, twin.param_groups[0]["params"][0])
    assert optimizer.param_groups[0].get("param_names") == (["X", "Y"] if named else None)


def test_batch_dims_that_leave_no_matrix_to_a_group_of_dion_are_refused():
    sentence = (
        r"^torchdion.Dion: batch_dims must leave a matrix of parameter 1 \(parameter group 0\) of shape \(6, 4\) to "
        r"algorithm='dion', got 1$"
    )
    stack, bias = Parameter(torch.zeros(2, 6, 4)), Parameter(torch.zeros(4))
    group = {"params": [stack, matrix()], "algorithm": "dion", "batch_dims": 1}
    with pytest.raises(ValueError, match=sentence):
        torchdion.Dion([group])
    torchdion.Dion([{**group, "params": [stack, bias]}])
    torchdion.Dion([{"params": [stack, matrix()], "batch_dims": 1}])


@pytest.mark.parametrize("option", [{"batch_dims": 1}, {"algorithm": "lion"}])
@pytest.mark.parametrize("algorithm", ["dion", "double_dion"])
def test_a_matrix_with_a_Q_stays_one_of_its_algorithm(algorithm, option):
    X = matrix()
    optimizer = torchdion.Dion([{"params": [X], "algorithm": algorithm}])
    X.grad = torch.randn(6, 4)
    optimizer.step()
    before, saved = X.detach().clone(), optimizer.state_dict()
    saved["param_groups"][0] |= option
    sentence = r"^torchdion.Dion: the algorithm of parameter 0 \(parameter group 0\) of shape \[6, 4\] must stay "
    sentence += f"'{algorithm}'"
    with pytest.raises(ValueError, match=sentence):
        optimizer.load_state_dict(saved)
    optimizer.step()
    before = X.detach().clone()
    optimizer.param_groups[0] |= option
    with pytest.raises(ValueError, match=sentence):
        optimizer.step()
    assert torch.equal(X, before)


def test_collections_of_parameters_are_checked_as_torch_does():
    with pytest.raises(ValueError, match="empty parameter list"):
        torchdion.Dion([])
    with pytest.raises(TypeError, match="iterable of Tensors"):
        torchdion.Dion(matrix())
    with pytest.raises(TypeError, match="ordered"):
        torchdion.Dion([{"params": {matrix(), matrix()}}])
    with pytest.raises(TypeError, match=r"^torchdion.Dion: a parameter group must be a dict, got list$"):
        torchdion.Dion([matrix()]).add_param_group([matrix()])
    with pytest.raises((KeyError, ValueError), match=r"params"):
        torchdion.Dion([matrix()]).add_param_group({"lr": 0.1})
    for params in (torch.nn.Linear(3, 3), None, 3):
        with pytest.raises(TypeError, match=rf"^torchdion.Dion: params must be .* got {type(params).__name__}$"):
            torchdion.Dion(params)
    with pytest.raises(TypeError, match=r"^torchdion.Dion: params must be .* got NoneType \(parameter group 0\)$"):
        torchdion.Dion([{"params": None}])
    with pytest.raises(ValueError, match=r"can't optimize a non-leaf Tensor"):
        torchdion.Dion([torch.ones(3, 3, requires_grad=True) * 2])


def test_blocks_that_do_not_divide_the_rows_are_refused():
    with pytest.raises(ValueError, match=r"^torchdion.Dion: blocks must divide the 6 rows of parameter 0 .*, got 4$"):
        torchdion.Dion([{"params": [matrix()], "blocks": 4}])


def test_a_parameter_of_three_dimensions_warns_once_and_names_it():
    experts = Parameter(torch.zeros(3, 4, 5))
    with pytest.warns(UserWarning, match=r"parameter 'experts' .* \(3, 4, 5\) .* 3×20; set batch_dims=1") as caught:
        optimizer = torchdion.Dion([("experts", experts), ("weight", matrix())])
        follow(optimizer, [experts], [[torch.ones(3, 4, 5)]] * 3)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch_dims in (0, 1):
            torchdion.Dion([{"params": [experts], "batch_dims": batch_dims}])
        torchdion.Dion([{"params": [experts], "algorithm": "lion"}])
        torchdion.Dion([Parameter(torch.zeros(3, 4, 5, 2))])


def test_a_near_miss_of_an_option_warns_and_other_keys_are_kept():
    with pytest.warns(
        UserWarning, match=r"unknown option 'rank_frction' \(parameter group 0\) .* 'rank_fraction'"
    ) as caught:
        optimizer = torchdion.Dion([{"params": [matrix()], "rank_frction": 0.5}])
    assert len(caught) == 1
    assert optimizer.param_groups[0]["rank_frction"] == 0.5
    assert optimizer.param_groups[0]["rank_fraction"] == 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = torchdion.Dion([{"params": [matrix()], "kind": "matrix", "initial_lr": 1.0, 7: "seven"}])
    assert optimizer.param_groups[0]["kind"] == "matrix"
    assert optimizer.param_groups[0][7] == "seven"


@pytest.mark.parametrize(
    ("index", "key", "value", "sentence"),
    [
        (0, "Q", torch.zeros(5, 2), "the state Q of a parameter of shape .6, 4. must have the shape .6, r. or .4, r."),
        (0, "Q", torch.zeros(6, 5), "with 1 ≤ r ≤ 4, got .6, 5."),
        (0, "Q", torch.zeros(6, 0), "got .6, 0."),
        (0, "Q", torch.zeros(6), "the state Q"),
        (0, "Q", torch.zeros(2, 6, 2), "the state Q"),
        (0, "Q", torch.zeros(2, 6).mT, "the state Q of a parameter of shape .6, 4. must be contiguous"),
        (0, "Q", torch.zeros(6, 2).int(), "floating-point"),
        (0, "momentum", torch.zeros(4, 6), "the state momentum of a parameter of shape .6, 4. must have that shape"),
        (0, "momentum", torch.zeros(4, 6).mT, "the state momentum .* must be contiguous"),
        (1, "Q", torch.zeros(5, 2), "must have the shape .3, 5, r. or .3, 4, r. .* got .5, 2."),
        (1, "Q", torch.zeros(2, 5, 2), "must have the shape .3, 5, r. or .3, 4, r. .* got .2, 5, 2."),
        (2, "momentum", torch.zeros(8), "the state momentum of a parameter of shape .7. must have that shape, got .8."),
        (2, "momentum", torch.zeros(14)[::2], "momentum .*contiguous"),
        (3, "momentum", torch.zeros(16)[::2], "momentum .*contiguous"),
        (3, "variance", torch.zeros(2, 4), "the state variance of a parameter of shape .8. must have that shape"),
        (3, "variance", torch.zeros(16)[:1].expand(8), "variance .*contiguous"),
        (3, "variance", torch.zeros(8).int(), "floating-point"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_before_any_write(index, key, value, sentence):
    params, optimizer = trained()
    optimizer.state[params[index]][key] = value
    assert_refused_before_any_write(params, optimizer, ValueError, sentence)


@pytest.mark.parametrize(("index", "key"), [(0, "Q"), (0, "momentum"), (2, "momentum"), (3, "variance")])
def test_a_missing_state_is_refused_before_any_write(index, key):
    params, optimizer = trained()
    del optimizer.state[params[index]][key]
    assert_refused_before_any_write(params, optimizer, ValueError, rf"^torchdion.Dion: .*{key}")


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_a_sparse_gradient_is_refused_before_any_write(index):
    params, optimizer = trained()
    params[index].grad = params[index].detach().to_sparse()
    assert_refused_before_any_write(
        params, optimizer, RuntimeError, "^torchdion.Dion: gradients must be dense, got torch.sparse"
    )


def test_a_checkpoint_with_another_number_of_groups_or_parameters_is_refused():
    optimizer = trained()[1]
    with pytest.raises(ValueError, match="different number of parameter groups"):
        torchdion.Dion([matrix()]).load_state_dict(optimizer.state_dict())
    with pytest.raises(ValueError, match="doesn't match the size"):
        torchdion.Dion([matrix(), matrix()]).load_state_dict(torchdion.Dion([matrix()]).state_dict())


class FailingQR(TorchDispatchMode):
    """The second QR of a step runs out of memory."""

    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += func is torch.ops.aten.linalg_qr.default
        if self.calls == 2:
            raise MemoryError("no memory for the second")
        return func(*args, **(kwargs or {}))


def test_a_step_that_fails_after_writing_marks_the_optimizer_as_broken():
    params = [matrix(), Parameter(torch.randn(9, 5)), Parameter(torch.randn(7))]
    optimizer = torchdion.Dion(params, orthonormalize="qr")
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer.step()
    saved, before = copy.deepcopy(optimizer.state_dict()), [param.detach().clone() for param in params]
    with FailingQR(), pytest.raises(MemoryError, match="the second"):
        optimizer.step()
    assert [torch.equal(param, old) for param, old in zip(params, before, strict=True)].count(True) == 2
    sentence = "^torchdion.Dion: the last step failed after 1 of 3 batches; load a checkpoint$"
    for refused in (optimizer.step, optimizer.state_dict, copy.deepcopy(optimizer).step):
        with pytest.raises(RuntimeError, match=sentence):
            refused()
    optimizer.load_state_dict(saved)
    optimizer.step()
