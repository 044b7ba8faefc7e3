"""An option that cannot change any more is one warning, and the warning is true."""

import re
import warnings
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import torchdion


def normal(*shape: int, salt: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(salt))


def trained(made_by: Any, shapes: list[tuple[int, ...]], **options: Any) -> tuple[list[Parameter], Any]:
    params = [Parameter(normal(*shape, salt=index)) for index, shape in enumerate(shapes)]
    optimizer = made_by(params, **options)
    step(optimizer, params)
    return params, optimizer


def step(optimizer: torch.optim.Optimizer, params: list[Parameter], salt: int = 50) -> None:
    for index, param in enumerate(params):
        param.grad = normal(*param.shape, salt=salt + index)
    optimizer.step()


def told(optimizer: torch.optim.Optimizer, params: list[Parameter], written: list[dict[str, Any]]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number, values in enumerate(written):
            optimizer.param_groups[0].update(values)
            step(optimizer, params, 100 + 10 * number)
    return [str(one.message) for one in caught]


FIXED: dict[str, tuple[Any, dict[str, Any], dict[str, Any], str]] = {
    "rank": (torchdion.Dion, {"rank_fraction": 0.5}, {"rank_fraction": 0.25}, "resize_rank()"),
    "multiple": (torchdion.Dion, {"rank_fraction": 0.3}, {"rank_multiple_of": 8}, "resize_rank()"),
    "replicas' rank": (torchdion.DoubleDion, {}, {"replicate_rank_fraction": 0.5}, "resize_rank()"),
    "momentum": (torchdion.Muon, {}, {"momentum_dtype": "bfloat16"}, "until a state dict is loaded"),
    "dtype": (torchdion.Dion, {}, {"Q_dtype": torch.bfloat16}, "until a state dict is loaded"),
    "variance": (torchdion.AdamW, {}, {"variance_dtype": "float64"}, "until a state dict is loaded"),
    "rows": (torchdion.NorMuon, {}, {"variance_dtype": "float64"}, "until a state dict is loaded"),
}


@pytest.mark.parametrize(("made_by", "options", "written", "words"), FIXED.values(), ids=FIXED)
def test_an_option_of_what_exists_is_one_warning_and_changes_nothing(
    made_by: Any, options: dict[str, Any], written: dict[str, Any], words: str
) -> None:
    params, optimizer = trained(made_by, [(8, 16), (6, 9)], **options)
    twins, twin = trained(made_by, [(8, 16), (6, 9)], **options)
    [sentence] = told(optimizer, params, [written, {}, written, {}])
    [(name, value)] = written.items()
    shown = value if isinstance(value, str) else str(value).removeprefix("torch.")
    assert sentence.startswith(
        f"{made_by.title}: {name}={shown!r} (" if "dtype" in name else f"{made_by.title}: {name}={value} ("
    )
    assert "(parameter group 0)" in sentence
    assert words in sentence
    assert told(twin, twins, [{}] * 4) == []
    assert all(map(torch.equal, params, twins))


@pytest.mark.filterwarnings("error")
def test_the_rank_that_resize_rank_gives_to_all_groups_is_none_that_was_written() -> None:
    X, b = Parameter(normal(8, 16)), Parameter(normal(5))
    optimizer = torchdion.Dion([{"params": [X]}, {"params": [b], "algorithm": "lion"}])
    step(optimizer, [X, b])
    optimizer.resize_rank(rank_fraction=0.25)
    step(optimizer, [X, b])
    assert optimizer.state[X]["Q"].shape[-1] == 2
    assert [group["rank_fraction"] for group in optimizer.param_groups] == [0.25, 0.25]


def test_resize_rank_makes_a_warned_rank_hold_and_another_one_is_not_warned_of_again() -> None:
    params, optimizer = trained(torchdion.Dion, [(8, 16)], rank_fraction=0.5)
    assert len(told(optimizer, params, [{"rank_fraction": 0.25}])) == 1
    assert optimizer.state[params[0]]["Q"].shape[-1] == 4
    optimizer.resize_rank()
    assert told(optimizer, params, [{}, {}]) == []
    assert optimizer.state[params[0]]["Q"].shape[-1] == 2


@pytest.mark.filterwarnings("error")
def test_before_there_are_states_every_option_is_obeyed_and_what_is_equal_is_no_change() -> None:
    X = Parameter(normal(8, 16))
    optimizer = torchdion.Dion([X], rank_fraction=0.5)
    [group] = optimizer.param_groups
    group.update(rank_fraction=0.25, orientation="left", Q_dtype=torch.float64, momentum_dtype="bfloat16")
    step(optimizer, [X])
    state = optimizer.state[X]
    assert (state["Q"].shape, state["Q"].dtype, state["momentum"].dtype) == ((16, 2), torch.float64, torch.bfloat16)
    group.update(rank_fraction=0.2, Q_dtype="float64", seed=0)  # of the same rank, and the same dtype
    step(optimizer, [X])
    group.update(rank_multiple_of=2, momentum_dtype="bfloat16")
    step(optimizer, [X])
    optimizer.load_state_dict(optimizer.state_dict())
    step(optimizer, [X])
    own = torchdion.Dion([X])
    step(own, [X])
    own.param_groups[0]["Q_dtype"] = "float32"  # which it has
    step(own, [X])


@pytest.mark.parametrize("shape", [(8, 8), (6, 9)])
def test_the_orientation_of_a_factor_stays(shape: tuple[int, int]) -> None:
    """A square matrix's Q would be taken for the factor of its other side."""
    params, optimizer = trained(torchdion.Dion, [shape], rank_fraction=0.25)
    twins, twin = trained(torchdion.Dion, [shape], rank_fraction=0.25)
    [sentence] = told(optimizer, params, [{"orientation": "left"}, {}, {"orientation": "left"}])
    assert sentence == (
        "torchdion.Dion: orientation='left' (parameter group 0) is not taken: it stays 'right', which Q was made for"
    )
    assert optimizer.param_groups[0]["orientation"] == "right"
    told(twin, twins, [{}] * 3)
    assert torch.equal(params[0], twins[0])


@pytest.mark.parametrize(
    ("made_by", "option", "value"),
    [
        (torchdion.AdamW, "mu", 0.5),
        (torchdion.Lion, "epsilon", 0.1),
        (torchdion.Muon, "ef_decay", 0.5),
        (torchdion.Muon, "rank_fraction", 0.5),
        (torchdion.Dion2, "muon_beta2", 0.5),
    ],
)
def test_an_option_of_other_algorithms_that_is_written_later_is_one_warning(
    made_by: Any, option: str, value: float
) -> None:
    params, optimizer = trained(made_by, [(8, 16)])
    [sentence] = told(optimizer, params, [{option: value}, {option: value / 2}, {option: value}])
    words = rf"{made_by.title}: the option '{option}' \(parameter group 0\) is kept and ignored: it is an option of "
    assert re.match(words, sentence)


CYCLES: dict[str, Any] = {
    "OneCycleLR": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=10),
    "CyclicLR": lambda optimizer: torch.optim.lr_scheduler.CyclicLR(optimizer, 0.001, 0.1, step_size_up=3),
}


@pytest.mark.parametrize("name", CYCLES)
@pytest.mark.parametrize(
    ("made_by", "words"),
    [
        (torchdion.Muon, "cycle_momentum: it is that of 'lion', while the momentum of 'muon' is mu, which stays 0.95"),
        (torchdion.Dion, "cycle_momentum: it is that of 'lion', while the momentum of 'dion' is mu, which stays 0.95"),
        (
            torchdion.Dion3,
            "cycle_momentum: it is that of 'lion', while the momentum of 'dion3' is ef_decay, which stays 0.95",
        ),
        (torchdion.AdamW, None),
        (torchdion.Lion, None),
    ],
)
def test_a_cycled_momentum_of_a_group_with_matrices_is_one_warning_that_says_whose_it_is(
    made_by: Any, words: str | None, name: str
) -> None:
    matrix, vector = Parameter(normal(6, 4)), Parameter(normal(5))
    optimizer = made_by([{"params": [matrix]}, {"params": [vector]}])
    scheduler = CYCLES[name](optimizer)
    seen = set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for salt in range(6):
            step(optimizer, [matrix, vector], salt)
            seen.add(optimizer.param_groups[1]["betas"][0])
            scheduler.step()
    assert len(seen) > 2
    sentences = [str(one.message) for one in caught]
    assert sentences == (
        [f"{made_by.title}: betas (parameter group 0) have another β₁, as under a scheduler with {words}"]
        if words
        else []
    )


def test_who_writes_mu_beside_betas_is_told_nothing() -> None:
    params, optimizer = trained(torchdion.Muon, [(6, 4), (5,)])
    assert told(optimizer, params, [{"betas": (0.8, 0.98), "mu": 0.9}, {"betas": (0.8, 0.5)}]) == []
    assert len(told(optimizer, params, [{"betas": (0.7, 0.5)}, {"betas": (0.6, 0.5)}])) == 1


@pytest.mark.parametrize(
    ("made_by", "key"), [(torchdion.Dion, "momentum"), (torchdion.Dion2, "momentum"), (torchdion.Dion3, "mu")]
)
def test_who_writes_the_momentum_under_its_other_name_beside_betas_is_told_nothing(made_by: Any, key: str) -> None:
    params, optimizer = trained(made_by, [(6, 4), (5,)])
    optimizer.param_groups[0][key] = 0.9
    step(optimizer, params)
    assert told(optimizer, params, [{"betas": (decay, 0.98), key: decay} for decay in (0.85, 0.8)]) == []
    assert len(told(optimizer, params, [{"betas": (0.7, 0.98), key: 0.8}])) == 1


@pytest.mark.parametrize("shape", [(8, 8), (8, 4), (4, 8)])
@pytest.mark.parametrize(
    ("made_by", "state"),
    [(torchdion.Dion, "Q"), (torchdion.DoubleDion, "Q"), (torchdion.NorMuon, "variance_neuron"),
     (torchdion.Dion3, "variance_neuron")],
)  # fmt: skip
def test_the_side_of_a_matrix_stays_that_a_state_belongs_to(made_by: Any, state: str, shape: tuple[int, int]) -> None:
    params, optimizer = trained(made_by, [shape])
    twins, twin = trained(made_by, [shape])
    [sentence] = told(optimizer, params, [{"fan_in_first": True}, {}])
    assert sentence == (
        f"{made_by.title}: fan_in_first=True (parameter group 0) is not taken: it stays False, which {state} was made "
        "for"
    )
    told(twin, twins, [{}] * 2)
    assert torch.equal(params[0], twins[0])


def test_a_rank_is_warned_of_after_a_resize_that_was_refused() -> None:
    params, optimizer = trained(torchdion.Dion, [(8, 16)], rank_fraction=0.5)
    optimizer.param_groups[0]["rank_fraction"] = 0.25
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="rank_multiple_of must be an integer"):
            optimizer.resize_rank(rank_multiple_of=-3)
    [sentence] = told(optimizer, params, [{}, {}])
    assert sentence.startswith("torchdion.Dion: rank_fraction=0.25 (parameter group 0) is that of Q that are still")


@pytest.mark.filterwarnings("error")
def test_a_rank_of_a_dict_in_the_place_of_a_group_is_taken_without_a_word() -> None:
    params, optimizer = trained(torchdion.Dion, [(8, 16)], rank_fraction=0.5)
    optimizer.param_groups = [{**group, "rank_fraction": 0.25} for group in optimizer.param_groups]
    optimizer.resize_rank()
    step(optimizer, params)
    assert optimizer.state[params[0]]["Q"].shape == (8, 2)


@pytest.mark.filterwarnings("error")
def test_where_no_state_belongs_to_a_side_it_may_change() -> None:
    params, optimizer = trained(torchdion.Muon, [(8, 4)])
    twins, twin = trained(torchdion.Muon, [(8, 4)])
    told(optimizer, params, [{"fan_in_first": True}])
    told(twin, twins, [{}])
    assert not torch.equal(params[0], twins[0])


def test_a_seed_that_comes_after_the_start_of_q_is_one_warning() -> None:
    params, optimizer = trained(torchdion.Dion, [(8, 8)], rank_fraction=0.5)
    [sentence] = told(optimizer, params, [{"seed": 77}, {"seed": 78}])
    assert sentence == (
        "torchdion.Dion: seed=77 (parameter group 0) is that of Q that are still to be made: those that there are keep "
        "their start"
    )


def test_a_dict_in_the_place_of_a_group_does_not_turn_the_sides_of_its_factors() -> None:
    params, optimizer = trained(torchdion.Dion, [(8, 8)])
    optimizer.param_groups[0] = {**optimizer.param_groups[0], "orientation": "left"}
    assert len(told(optimizer, params, [{}])) == 1
    assert optimizer.param_groups[0]["orientation"] == "right"


@pytest.mark.parametrize(
    ("made_by", "shape", "written", "words"),
    [
        (torchdion.AdamW, (6, 4), {"algorithm": "muon"}, "of shape [6, 4] must stay 'adamw', whose state variance it"),
        (torchdion.Dion, (6, 4), {"algorithm": "muon"}, "of shape [6, 4] must stay 'dion', whose state Q it has, got"),
        (torchdion.AdamW, (5,), {"algorithm": "lion"}, "of shape [5] must stay 'adamw', whose state variance it has"),
    ],
)
def test_no_algorithm_goes_on_with_states_that_it_does_not_have(
    made_by: Any, shape: tuple[int, ...], written: dict[str, Any], words: str
) -> None:
    params, optimizer = trained(made_by, [shape])
    before, [group] = params[0].detach().clone(), optimizer.param_groups
    options = {name: group[name] for name in written}
    group.update(written)
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"^{made_by.title}: the algorithm of parameter 0 .*{re.escape(words)}"):
            step(optimizer, params)
    assert torch.equal(params[0], before)
    group.update(options)
    step(optimizer, params)
    group.update(written)
    optimizer.state.clear()
    step(optimizer, params)


def test_a_state_that_is_no_dict_is_refused_in_its_own_sentence() -> None:
    params, optimizer = trained(torchdion.Muon, [(6, 4)])
    optimizer.state[params[0]] = [1]
    optimizer.param_groups[0]["momentum_dtype"] = "bfloat16"
    with pytest.raises(ValueError, match=r"^torchdion.Muon: the state of parameter 0 .* must be a dict, got list$"):
        step(optimizer, params)


@pytest.mark.parametrize(
    ("made_by", "shape", "written", "words"),
    [
        (torchdion.Lion, (6, 4), {"algorithm": "muon"}, "algorithm='muon' (parameter group 0) makes 'muon'|'lion'"),
        (torchdion.Muon, (6, 4), {"use_muon": False, "algorithm": "lion"}, "algorithm='lion' (par|makes 'lion'|'muon'"),
        (torchdion.Muon, (3, 6, 4), {"batch_dims": 2}, "batch_dims=2 (parameter group 0) makes 'lion'|of 'muon'"),
    ],
)
def test_an_algorithm_that_goes_on_with_a_momentum_of_another_is_one_warning(
    made_by: Any, shape: tuple[int, ...], written: dict[str, Any], words: str
) -> None:
    params = [Parameter(normal(*shape))]
    optimizer = made_by([{"params": params, "batch_dims": 1 if len(shape) == 3 else None}])
    step(optimizer, params)
    [sentence] = told(optimizer, params, [written, {}, written])
    assert all(part in sentence for part in words.split("|"))
    assert "go on with the momentum of" in sentence
