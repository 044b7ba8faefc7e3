"""Groups as other Muons take them train by the rule that they say, or are refused in one sentence."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.nn import Parameter

import torchdion
from torchdion.options import SELECTORS
from torchdion.words import shown


def matrix() -> Parameter:
    return Parameter(torch.linspace(-1, 1, 24).reshape(6, 4).clone())


def stepped(made_by: Any, group: dict[str, Any], steps: int = 2, **options: Any) -> Parameter:
    X = matrix()
    optimizer = made_by([{"params": [X], **group}], **options)
    for step in range(steps):
        X.grad = torch.cos(torch.arange(24.0) * (step + 1)).reshape(6, 4)
        optimizer.step()
    return X.detach()


ADAMW = [
    {"use_muon": False},
    {"use_muon": 0},
    {"use_muon": numpy.bool_(False)},
    {"is_muon": False},
    {"use_adam": True},
    {"use_adamw": 1},
    {"kind": "adamw"},
    {"kind": "adam"},
    {"optim_type": "AdamW"},
    {"optimizer_type": "adam"},
    {"optimizer": torch.optim.AdamW},
    {"optimizer": torch.optim.Adam([Parameter(torch.zeros(1))])},
    {"kind": "adamw_embeddings", "use_muon": False},
    {"optim": "adam"},
    {"algorithm": "adam"},
    {"use_muon": False, "kind": "adamw", "algorithm": "adamw"},
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("made_by", [torchdion.Muon, torchdion.NorMuon, torchdion.Dion, torchdion.AdamW])
@pytest.mark.parametrize("says", ADAMW, ids=lambda says: shown(says)[:60])
def test_a_group_that_says_adamw_takes_the_steps_of_torchs_adamw(says: dict[str, Any], made_by: Any) -> None:
    rates = {"lr": 0.03, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1}
    expected, got = stepped(torch.optim.AdamW, rates), stepped(made_by, rates | says)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


MUON = [{"use_muon": True}, {"is_muon": True}, {"kind": "muon"}, {"optim_type": "Muon"}, {"optimizer": "muon"}]
MUON += [{"use_adam": False}, {"use_muon": True, "kind": "muon_matrices"}]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("says", MUON, ids=str)
def test_a_group_that_says_muon_is_the_one_of_muon_or_normuon(says: dict[str, Any]) -> None:
    for made_by in (torchdion.Muon, torchdion.NorMuon):
        assert torch.equal(stepped(made_by, says), stepped(made_by, {}))
    assert torch.equal(
        stepped(torchdion.Muon, {"use_muon": False, "kind": "lion"}), stepped(torchdion.Lion, {}, lr=0.02)
    )
    assert torch.equal(stepped(torchdion.Dion, says | {"algorithm": "muon"}), stepped(torchdion.Muon, {}, lr=0.01))


@pytest.mark.filterwarnings("error")
def test_kinds_that_name_no_rule_are_kept_and_change_nothing() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 7))
    for made_by in (torchdion.Muon, torchdion.Dion, torchdion.AdamW):
        groups = made_by(torchdion.param_groups(model)).param_groups
        assert {group["kind"] for group in groups} == {"matrix", "embedding", "vector", "head"}
    names = ("backbone", "lambda", "camera", "demodulator", "optimizer_0", "muon_matrices", "muon2", 3, None)
    for kept in (*({"kind": name} for name in names), {"use_muon": None}, {"optimizer": None}):
        [group] = torchdion.Muon([{"params": [matrix()], **kept}]).param_groups
        assert group["algorithm"] == "muon"
        assert {key: group[key] for key in kept} == kept


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (torchdion.Muon, {"use_muon": False, "algorithm": "muon"}, "use_muon=False means algorithm='adamw', got "
     "algorithm='muon' too"),
    (torchdion.Muon, {"use_muon": True, "algorithm": "lion"}, "use_muon=True means algorithm='muon', got "
     "algorithm='lion' too"),
    (torchdion.Muon, {"use_muon": True, "kind": "adamw"}, "use_muon=True means algorithm='muon', got "
     "algorithm='adamw' too"),
    (torchdion.Muon, {"optim": "muon", "kind": "adam"}, "kind='adam' means algorithm='adamw', got "
     "algorithm='muon' too"),
    (torchdion.Muon, {"optim": "lion", "kind": "adam"}, "kind='adam' means algorithm='adamw', got "
     "algorithm='lion' too"),
    (torchdion.AdamW, {"use_muon": True}, "use_muon=True means algorithm='muon', and the optimizer's own is 'adamw'"),
    (torchdion.Dion, {"kind": "muon"}, "kind='muon' means algorithm='muon', and the optimizer's own is 'dion'"),
    (torchdion.Lion, {"optim_type": "adam"}, "optim_type='adam' means algorithm='adamw', and the optimizer's own is"),
    (torchdion.Muon, {"kind": "dion"}, "kind='dion' means algorithm='dion', and the optimizer's own is 'muon'"),
    (torchdion.Muon, {"kind": "shampoo"}, "kind must be one of 'adam', 'dion', .*, got 'shampoo'"),
    (torchdion.Muon, {"kind": "SGD"}, "kind must be one of .*, got 'SGD'"),
    (torchdion.Muon, {"optim_type": "mine"}, "optim_type must be one of .*, got 'mine'"),
    (torchdion.Muon, {"optimizer": torch.optim.SGD}, "optimizer must be one of .*, got <class .*SGD'>"),
    (torchdion.Muon, {"optimizer": torch.optim.SGD([Parameter(torch.zeros(1))])}, "optimizer must be .*, got SGD"),
    (torchdion.Muon, {"optimizer": 1}, "optimizer must be one of .*, got 1"),
    (torchdion.Muon, {"optim": {"name": "adamw"}}, "optim must be one of .*, got {'name': 'adamw'}"),
    (torchdion.Muon, {"kind": "adamw_embeddings"}, "kind='adamw_embeddings' says 'adamw', got algorithm='muon'"),
    (torchdion.Muon, {"kind": "adam8bit"}, "kind='adam8bit' says 'adam', got algorithm='muon'"),
    (torchdion.Muon, {"kind": "sgd_momentum"}, "kind='sgd_momentum' says 'sgd', got algorithm='muon'"),
    (torchdion.Muon, {"kind": "double-dion.heads"}, "kind='double-dion.heads' says 'double-dion', got algorithm='mu"),
    (torchdion.AdamW, {"kind": "muon_matrices"}, "kind='muon_matrices' says 'muon', got algorithm='adamw'"),
    (torchdion.Muon, {"kind": "lion_1", "use_muon": False}, "kind='lion_1' says 'lion', got algorithm='adamw'"),
    (torchdion.Muon, {"use_adam": True, "algorithm": "muon"}, "use_adam=True means algorithm='adamw', got "
     "algorithm='muon' too"),
    (torchdion.AdamW, {"use_adam": False}, "use_adam=False means algorithm='muon', and the optimizer's own is 'adamw'"),
    (torchdion.Muon, {"use_adam": True, "use_muon": True}, "use_adam=True means algorithm='adamw', got algorithm='muo"),
    (torchdion.Muon, {"use_muon": "yes"}, "use_muon must be True or False, got 'yes'"),
]  # fmt: skip


@pytest.mark.parametrize(("made_by", "says", "words"), REFUSED)
def test_what_has_no_plain_meaning_is_refused_and_not_added(made_by: Any, says: dict[str, Any], words: str) -> None:
    optimizer = made_by([matrix()])
    group = {"params": [matrix()], **says}
    with pytest.raises(ValueError, match=rf"^{re.escape(made_by.title)}: {words}.*\(parameter group 1\)"):
        optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1
    assert group.keys() == {"params", *says}


def test_the_second_beta_of_a_group_of_normuon_is_that_of_its_rows() -> None:
    group = {"params": [matrix()], "use_muon": True, "momentum": 0.9, "beta2": 0.7}
    [own] = torchdion.NorMuon([group]).param_groups
    assert (own["mu"], own["muon_beta2"], own["betas"]) == (0.9, 0.7, (0.95, 0.98))


@pytest.mark.filterwarnings("error")
def test_a_loop_that_reads_the_kind_of_a_group_and_writes_its_momentum_trains_as_one_that_writes_mu() -> None:
    def train(is_theirs: bool) -> list[torch.Tensor]:
        X, E = matrix(), matrix()
        kinds: list[dict[str, Any]] = [{"kind": "muon", "momentum": 0.95}, {"kind": "adamw", "eps": 1e-4}]
        ours: list[dict[str, Any]] = [{}, {"algorithm": "adamw", "epsilon": 1e-4}]
        more = kinds if is_theirs else ours
        optimizer = torchdion.Muon([{"params": [p], **group} for p, group in zip((X, E), more, strict=True)])
        for step in range(4):
            for index, group in enumerate(optimizer.param_groups):
                if is_theirs and group["kind"] == "muon" and "momentum" in group:
                    group["momentum"] = 0.5 + 0.1 * step
                if not is_theirs and index == 0:
                    group["mu"] = 0.5 + 0.1 * step
            for p in (X, E):
                p.grad = torch.cos(torch.arange(24.0) * (step + 1)).reshape(6, 4)
            optimizer.step()
        return [X.detach(), E.detach()]

    assert all(map(torch.equal, train(True), train(False)))
    assert not torch.equal(train(True)[0], train(True)[1])


def test_a_choice_that_is_written_later_is_obeyed_before_the_first_step_and_refused_with_another_rules_states() -> None:
    X = matrix()
    optimizer = torchdion.Muon([{"params": [X], "use_muon": False}])
    X.grad = torch.ones(6, 4)
    [group] = optimizer.param_groups
    group["use_muon"] = True
    optimizer.step()
    assert (group["algorithm"], "variance" in optimizer.state[X]) == ("muon", False)
    group["use_muon"] = False
    with pytest.raises(ValueError, match=r"^torchdion.Muon: the state of .* lacks the tensor 'variance'"):
        optimizer.step()
    group["algorithm"] = "muon"
    with pytest.raises(
        ValueError, match=r"^torchdion.Muon: use_muon=False means algorithm='adamw', got algorithm='muo"
    ):
        optimizer.step()
    group["use_muon"] = True
    optimizer.step()


CHANGES = [
    ({"use_muon": False}, {"use_muon": True}, "'adamw', whose state variance it has, got another"),
    ({"algorithm": "adamw"}, {"algorithm": "lion"}, "'adamw', whose state variance it has, got another"),
    ({"algorithm": "normuon"}, {"algorithm": "muon"}, "'normuon', whose state variance_neuron it has, got"),
    ({"algorithm": "dion"}, {"algorithm": "muon"}, "'dion', whose state Q it has, got another"),
]


@pytest.mark.parametrize(("before", "after", "words"), CHANGES)
def test_a_rule_that_lacks_a_state_of_the_one_before_does_not_take_the_rest(
    before: dict[str, Any], after: dict[str, Any], words: str
) -> None:
    X = matrix()
    optimizer = torchdion.Muon([{"params": [X], **before}])
    X.grad = torch.ones(6, 4)
    optimizer.step()
    saved, weights = optimizer.state_dict(), X.detach().clone()
    optimizer.param_groups[0].update(after)
    words = rf"^torchdion.Muon: the algorithm of parameter 0 \(parameter group 0\) .* must stay {words}"
    with pytest.raises(ValueError, match=words):
        optimizer.step()
    with pytest.raises(ValueError, match=words):
        torchdion.Muon([{"params": [matrix()], **after}]).load_state_dict(
            {**saved, "param_groups": optimizer.state_dict()["param_groups"]}
        )
    assert torch.equal(X, weights)
    del optimizer.state[X]  # to start anew
    optimizer.step()
    assert not torch.equal(X, weights)


def test_a_saved_group_that_contradicts_the_algorithm_that_it_is_loaded_with_is_refused() -> None:
    optimizer = torchdion.Muon([matrix()])
    own = optimizer.state_dict()
    own["param_groups"][0]["use_muon"] = False
    theirs = {"state": {}, "param_groups": [{"params": [0], "use_muon": False, "lr": 0.1}]}
    for saved in (own, theirs):
        with pytest.raises(ValueError, match=r"use_muon=False means algorithm='adamw', got algorithm='muon' too \("):
            optimizer.load_state_dict(saved)
    other = torchdion.Muon([{"params": [matrix()], "use_muon": False}])
    other.load_state_dict(theirs)
    assert other.param_groups[0]["algorithm"] == "adamw"


@pytest.mark.filterwarnings("error")
def test_groups_of_others_are_saved_and_loaded_with_their_keys() -> None:
    groups = [{"params": [matrix()], "use_muon": True, "momentum": 0.8}, {"params": [matrix()], "use_muon": False}]
    optimizer = torchdion.Muon(groups)
    for group in optimizer.param_groups:
        group["params"][0].grad = torch.ones(6, 4)
    optimizer.step()
    other = torchdion.Muon([{"params": [matrix()]}, {"params": [matrix()], "algorithm": "adamw"}])
    other.load_state_dict(optimizer.state_dict())
    other.step()
    assert [(group["use_muon"], group["algorithm"]) for group in other.param_groups] == [
        (True, "muon"), (False, "adamw"),
    ]  # fmt: skip
    assert other.param_groups[0]["momentum"] == other.param_groups[0]["mu"] == 0.8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.step()


def test_the_table_of_keys_is_whole() -> None:
    """docs/guides/migrating.md has each of them."""
    page = (Path(__file__).parents[3] / "docs" / "guides" / "migrating.md").read_text()
    section = page.partition("\n## From other Muons")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    assert {key for row in rows for key in re.findall("`([a-z_]+)`", row)} == {*SELECTORS, "algorithm"}
