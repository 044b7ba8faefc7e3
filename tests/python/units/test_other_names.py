"""Two names of one option: the last one written holds, when a group is added and at every step."""

import copy
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.nn import Parameter

import torchdion
from torchdion.options import OTHER_NAMES
from torchdion.table import OPTIONS

SCALAR = {"scalar_algorithm": "adamw"}


def parameters() -> list[Parameter]:
    return [
        Parameter(torch.linspace(-1, 1, 24).reshape(6, 4).clone()),
        Parameter(torch.linspace(-1, 1, 5).clone()),
    ]


def give(params: list[Parameter], step: int) -> None:
    for param in params:
        param.grad = torch.cos(torch.arange(float(param.numel())) * (step + 1)).reshape(param.shape)


NAMES: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "Muon's momentum": (torchdion.Muon, {}, "momentum", "mu"),
    "NorMuon's": (torchdion.NorMuon, {}, "momentum", "mu"),
    "Dion's": (torchdion.Dion, {}, "momentum", "mu"),
    "Double Dion's": (torchdion.DoubleDion, {}, "momentum", "mu"),
    "Dion2's": (torchdion.Dion2, {}, "momentum", "ef_decay"),
    "Dion2's mu": (torchdion.Dion2, {}, "mu", "ef_decay"),
    "Dion3's mu": (torchdion.Dion3, {}, "mu", "ef_decay"),
    "AdamW's eps": (torchdion.AdamW, {}, "eps", "epsilon"),
    "eps of scalars": (torchdion.Muon, SCALAR, "eps", "epsilon"),
    "wd": (torchdion.Lion, {}, "wd", "weight_decay"),
    "wd of matrices": (torchdion.Muon, {}, "wd", "weight_decay"),
    "oversample": (torchdion.Dion, {"rank_fraction": 0.5, "orthonormalize": "rcqr"}, "oversample", "rcqr_oversample"),
}


def values(key: str) -> list[float]:
    return [1.1, 2.0, 3.0, 1.5] if "oversample" in key else [0.5, 0.6, 0.6, 0.2]


def train(made_by: Any, options: dict[str, Any], key: str, at_the_door: bool = False) -> list[torch.Tensor]:
    params = parameters()
    schedule = values(key)
    door = {key: schedule[0]} if at_the_door else {}
    optimizer = made_by([{"params": params, **door}], lr=0.1, **options)
    for step, value in enumerate(schedule):
        if step > 0 or not at_the_door:
            optimizer.param_groups[0][key] = value
        give(params, step)
        optimizer.step()
    return [param.detach() for param in params]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("at_the_door", [False, True])
@pytest.mark.parametrize(("made_by", "options", "key", "own"), NAMES.values(), ids=NAMES)
def test_a_schedule_under_another_name_is_one_under_ours(
    made_by: Any, options: dict[str, Any], key: str, own: str, at_the_door: bool
) -> None:
    expected, got = train(made_by, options, own), train(made_by, options, key, at_the_door)
    assert all(map(torch.equal, got, expected))
    params = parameters()
    optimizer = made_by(params, lr=0.1, **options)
    for step in range(len(values(key))):
        give(params, step)
        optimizer.step()
    assert not all(map(torch.equal, got, params))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("made_by", [torchdion.AdamW, torchdion.Lion, torchdion.Muon])
def test_beta1_and_beta2_are_the_entries_of_betas_at_every_step(made_by: Any) -> None:
    trained = []
    for is_theirs in (True, False):
        params = parameters()[1:]
        optimizer = made_by(params, betas=(0.9, 0.99))
        [group] = optimizer.param_groups
        for step, (first, second) in enumerate([(0.5, 0.99), (0.6, 0.7), (0.6, 0.8)]):
            if is_theirs:
                group |= {"beta1": first} | ({"beta2": second} if step else {})
            else:
                group["betas"] = first, second
            give(params, step)
            optimizer.step()
            assert group["betas"] == (first, second)
        trained.append([param.detach() for param in params])
    assert all(map(torch.equal, *trained))


@pytest.mark.filterwarnings("error")
def test_the_last_name_that_was_written_holds_and_both_say_so() -> None:
    params = parameters()
    optimizer = torchdion.Muon([{"params": params, "momentum": 0.5}])
    [group] = optimizer.param_groups

    def after(**written: float) -> tuple[float, float]:
        group.update(written)
        give(params, 0)
        optimizer.step()
        return group["mu"], group["momentum"]

    assert after() == (0.5, 0.5)
    assert after(mu=0.7) == (0.7, 0.7)
    assert after(momentum=0.5) == (0.5, 0.5)  # the same value as the last time under this name
    assert after(momentum=0.6) == (0.6, 0.6)
    assert after() == (0.6, 0.6)
    assert after(momentum=0.8, mu=0.8) == (0.8, 0.8)
    group["momentum"] += 0.1
    assert after()[0] == pytest.approx(0.9)
    del group["momentum"]
    give(params, 0)
    optimizer.step()
    assert group["mu"] == pytest.approx(0.9)


def test_of_two_names_that_are_written_with_different_values_ours_holds_and_one_warning_says_so() -> None:
    params = parameters()
    optimizer = torchdion.Muon(params)
    [group] = optimizer.param_groups
    with pytest.warns(UserWarning) as caught:
        for step in range(3):
            group.update(mu=0.5 + step / 10, momentum=0.8 + step / 100)
            give(params, step)
            optimizer.step()
            assert group["mu"] == group["momentum"] == 0.5 + step / 10
    [sentence] = [str(one.message) for one in caught]
    assert sentence == ("torchdion.Muon: momentum=0.8 means mu=0.8, got mu=0.5 too (parameter group 0); mu=0.5 holds")


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"momentum": 0.5, "mu": 0.8}, "momentum=0.5 means mu=0.5, got mu=0.8 too"),
        ({"momentum": 0.5, "mu": 0.95}, "momentum=0.5 means mu=0.5, got mu=0.95 too"),  # the default
        ({"beta1": 0.7, "betas": (0.1, 0.2)}, r"beta1=0.7 means betas\[0\]=0.7, got betas=\(0.1, 0.2\) too"),
        ({"eps": 1e-5, "epsilon": 1e-6, "algorithm": "adamw"}, "eps=1e-05 means epsilon=1e-05, got epsilon=1e-06 too"),
        ({"algorithm": "dion2", "mu": 0.5, "ef_decay": 0.8}, "mu=0.5 means ef_decay=0.5, got ef_decay=0.8 too"),
    ],
)
def test_a_group_that_is_added_with_two_values_of_one_option_is_refused(group: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=rf"^torchdion.Muon: {words} \(parameter group 0\)$"):
        torchdion.Muon([{"params": parameters(), **group}])


@pytest.mark.filterwarnings("error")
def test_ours_counts_as_given_where_a_group_has_it_and_not_where_the_constructor_has() -> None:
    [group] = torchdion.Muon([{"params": parameters(), "momentum": 0.5}], mu=0.8).param_groups
    assert group["mu"] == 0.5
    [group] = torchdion.Dion3([{"params": parameters(), "mu": 0.95}], ef_decay=0.8).param_groups
    assert group["ef_decay"] == group["mu"] == 0.95
    [group] = torchdion.Dion3(parameters(), ef_decay=0.8).param_groups
    assert group["ef_decay"] == 0.8 and "mu" not in group
    [again] = torchdion.Dion3([{**group, "mu": 0.95}]).param_groups  # a whole group, of which mu has its default
    assert again["ef_decay"] == 0.8


@pytest.mark.parametrize(
    ("made_by", "key", "value", "words"),
    [
        (
            torchdion.Muon,
            "momentum",
            1.5,
            r"mu must be in \[0, 1\), got 1.5 \(parameter group 0, given as 'momentum'\)",
        ),
        (torchdion.Dion2, "momentum", "0.9", r"ef_decay must be in \[0, 1\), got '0.9' \(.*given as 'momentum'\)"),
        (torchdion.AdamW, "eps", -1, r"epsilon must be a finite number ≥ 0, got -1 \(.*, given as 'eps'\)"),
        (torchdion.AdamW, "beta1", 1.0, r"beta1 must be in \[0, 1\), got 1.0 \(parameter group 0\)"),
        (torchdion.Lion, "wd", numpy.ones(2), r"weight_decay must be .*, got array.* \(.*, given as 'wd'\)"),
    ],
)
def test_a_value_out_of_range_is_refused_under_both_names_and_nothing_is_written(
    made_by: Any, key: str, value: Any, words: str
) -> None:
    params = parameters()
    with pytest.raises(ValueError, match=rf"^{made_by.title}: {words}$"):
        made_by([{"params": params, key: value}])
    optimizer = made_by(params)
    [group] = optimizer.param_groups
    group[key] = value
    before, weights = dict(group), [param.detach().clone() for param in params]
    give(params, 0)
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"^{made_by.title}: {words}$"):
            optimizer.step()
    assert all(group[name] is kept for name, kept in before.items())
    assert all(map(torch.equal, params, weights))
    del group[key]
    optimizer.step()


MEANINGLESS = [
    (
        torchdion.AdamW,
        "momentum",
        "'momentum' (parameter group 0) is kept and ignored: it is 'mu' here, an option of dion, ",
    ),
    (
        torchdion.Muon,
        "eps",
        "'eps' (parameter group 0) is kept and ignored: it is 'epsilon' here, an option of adamw, wh",
    ),
    (torchdion.Muon, "oversample", "'oversample' (parameter group 0) is kept and ignored: it is 'rcqr_oversample' he"),
]


@pytest.mark.parametrize("at_the_door", [False, True])
@pytest.mark.parametrize(("made_by", "key", "words"), MEANINGLESS)
def test_a_name_of_no_option_of_the_group_is_one_warning_that_names_ours(
    made_by: Any, key: str, words: str, at_the_door: bool
) -> None:
    params = parameters()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = made_by([{"params": params, **({key: 0.4} if at_the_door else {})}])
        for step in range(3):
            optimizer.param_groups[0][key] = 0.5 + step / 10
            give(params, step)
            optimizer.step()
    [sentence] = [str(one.message) for one in caught]
    assert sentence.startswith(f"{made_by.title}: the key {words}")
    assert optimizer.param_groups[0][key] == 0.7


def test_a_beta_of_a_group_without_parameters_that_have_some_is_one_warning() -> None:
    with pytest.warns(
        UserWarning,
        match=r"the key 'beta2' .* has no effect: it is 'betas' here, an option of lion, adamw, which no param",
    ):
        [group] = torchdion.NorMuon([{"params": parameters()[:1], "beta2": 0.5}]).param_groups
    assert group["betas"][1] == 0.5


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("how", ["loaded", "pickled", "copied"])
def test_both_names_live_on_in_a_copy(how: str) -> None:
    params = parameters()
    optimizer = torchdion.Muon([{"params": params, "momentum": 0.5}])
    give(params, 0)
    optimizer.step()
    optimizer.param_groups[0]["momentum"] = 0.6  # by a scheduler that steps after the optimizer
    if how == "loaded":
        other: Any = torchdion.Muon(parameters())
        other.load_state_dict(optimizer.state_dict())
    else:
        other = pickle.loads(pickle.dumps(optimizer)) if how == "pickled" else copy.deepcopy(optimizer)
    [group] = other.param_groups
    give(group["params"], 1)
    other.step()
    assert (group["mu"], group["momentum"]) == (0.6, 0.6)
    group["momentum"] = 0.7
    other.step()
    assert group["mu"] == 0.7


def test_a_loaded_group_whose_two_names_differ_goes_on_with_ours_and_says_so() -> None:
    """As older versions saved them, which went on with ours."""
    optimizer = torchdion.Muon(parameters())
    saved = optimizer.state_dict()
    saved["param_groups"][0]["momentum"] = 0.5
    optimizer.load_state_dict(saved)
    give(optimizer.param_groups[0]["params"], 0)
    with pytest.warns(UserWarning, match=r"means mu=0.5, got mu=0.95 too \(parameter group 0\); mu=0.95 holds$"):
        optimizer.step()
    assert optimizer.param_groups[0]["momentum"] == 0.95


@pytest.mark.filterwarnings("error")
def test_groups_that_torch_saved_are_scheduled_by_torchs_names() -> None:
    params = parameters()[:1]
    give(params, 0)
    before = torch.optim.Muon(params, momentum=0.8)
    before.step()
    optimizer = torchdion.Muon(parameters()[:1])
    optimizer.load_state_dict(before.state_dict())
    [group] = optimizer.param_groups
    assert group["mu"] == 0.8
    group["momentum"] = 0.6
    give(group["params"], 1)
    optimizer.step()
    assert group["mu"] == 0.6


@pytest.mark.filterwarnings("error")
def test_options_of_a_group_that_another_program_saved_hold_under_its_names() -> None:
    saved = {"params": [0], "lr": 0.1, "momentum": 0.5, "wd": 0.25, "beta2": 0.5, "use_muon": True}
    optimizer = torchdion.Muon([{"params": parameters()[:1], "ns_steps": 3}])
    optimizer.load_state_dict({"state": {}, "param_groups": [saved]})
    [group] = optimizer.param_groups
    give(group["params"], 0)
    optimizer.step()
    assert (group["mu"], group["weight_decay"], group["betas"][1], group["ns_steps"]) == (0.5, 0.25, 0.5, 3)
    assert (group["momentum"], group["wd"]) == (0.5, 0.25)
    for key, value in (("momentum", 1.5), ("beta2", "half")):
        with pytest.raises(ValueError, match=r" must be in \[0, 1\), got .*parameter group 0 of the state dict"):
            optimizer.load_state_dict({"state": {}, "param_groups": [saved | {key: value}]})


def test_the_table_of_names_is_whole() -> None:
    """docs/guides/migrating.md has each of them, with its options."""
    page = (Path(__file__).parents[3] / "docs" / "guides" / "migrating.md").read_text()
    section = page.partition("\n## Keys of groups")[2].partition("\n## ")[0]
    of_page: dict[str, set[str]] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            keys, _, options = line.split(" | ")
            for key in re.findall("`([a-z0-9]+)`", keys):
                of_page.setdefault(key, set()).update(set(re.findall("`([a-z_]+)`", options)) & OPTIONS.keys())
    assert of_page == {key: set(options) for key, options in OTHER_NAMES.items()}


def test_a_keyword_that_is_an_option_of_others_is_refused_with_the_own_one_that_it_means() -> None:
    sentence = "torchdion.Dion2: unexpected keyword argument 'mu'; did you mean 'ef_decay'?"
    with pytest.raises(TypeError, match=f"^{re.escape(sentence)}$"):
        torchdion.Dion2(parameters(), mu=0.9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("how", ["at the door", "at once", "saved"])
def test_betas_of_none_beside_beta1_say_nothing(how: str) -> None:
    said = {"betas": None, "beta1": 0.8}
    optimizer = torchdion.AdamW([{"params": parameters(), **(said if how == "at the door" else {})}])
    [group] = optimizer.param_groups
    give(group["params"], 0)
    if how == "at once":
        group |= said
    elif how == "saved":
        optimizer.load_state_dict({"state": {}, "param_groups": [{"params": [0, 1], "lr": 0.1, **said}]})
    optimizer.step()
    [group] = optimizer.param_groups
    assert group["betas"] == (0.8, 0.95)
    assert group["beta1"] == 0.8


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("key", ["momentum", "eps", "wd", "beta1", "beta2", "oversample"])
@pytest.mark.parametrize("made_by", [torchdion.Muon, torchdion.AdamW])
def test_none_under_another_name_says_nothing(made_by: Any, key: str) -> None:
    """As configurations leave it."""
    params, twins = parameters(), parameters()
    optimizer, twin = made_by([{"params": params, key: None}]), made_by(twins)
    for number in range(2):
        for each, own in ((optimizer, params), (twin, twins)):
            give(own, number)
            each.step()
    assert all(map(torch.equal, params, twins))
    assert optimizer.param_groups[0][key] is None
    later = made_by(parameters())
    later.param_groups[0][key] = None
    later.step()
    other = made_by(parameters())
    saved = {"params": [0, 1], "lr": 0.1, key: None}
    other.load_state_dict({"state": {}, "param_groups": [saved]})
    named = ("mu", "betas", "epsilon")
    assert all(other.param_groups[0].get(name) == twin.param_groups[0].get(name) for name in named)
