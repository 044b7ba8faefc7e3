"""A plan compares every optimizer of the library."""

import torch
from torch import nn

import torchdion
from torchdion.optimizer import Optimizer
from torchdion.owners import SharesStates
from torchdion.planning.optimizers import OF_ENTRIES, OPTIMIZERS, WITH_OWNERS, own_precision


def test_every_class_of_the_library_is_compared() -> None:
    classes = [each for each in vars(torchdion).values() if isinstance(each, type) and issubclass(each, Optimizer)]
    assert len(classes) == 11
    for made_by in classes:
        name = f"dist_{made_by.algorithm}" if issubclass(made_by, SharesStates) else made_by.algorithm
        assert name in OPTIMIZERS or made_by is torchdion.Dion, name
    assert len(OPTIMIZERS) == len(classes) + 2  # two forms of Dion, and Muon as it is elsewhere
    assert list(WITH_OWNERS.items()) == [("dist_adamw", "adamw"), ("dist_muon", "muon")]
    assert OF_ENTRIES == ("lion", "adamw")


def test_each_says_what_its_ranks_send_in_words_of_its_own() -> None:
    of_matrices = [name for name in OPTIMIZERS if name not in OF_ENTRIES]
    assert len({OPTIMIZERS[name] for name in of_matrices}) == len(of_matrices)
    assert Optimizer.exchanges not in OPTIMIZERS.values()


def test_products_have_the_precision_that_the_optimizer_itself_has() -> None:
    bf16 = {"muon", "normuon", "dion2", "dion3", "muon_gathering", "dist_muon"}
    assert {name for name in OPTIMIZERS if own_precision(name) == "medium"} == bf16
    assert {own_precision(name) for name in OPTIMIZERS if name not in bf16} == {"high"}


def test_a_rule_entry_by_entry_is_planned_as_its_steps_are() -> None:
    model = nn.Linear(8, 4)
    found = torchdion.plan(model, {"dp": 2})
    for name, moments in (("lion", 1), ("adamw", 2)):
        optimizer = Optimizer.of(name)(model.parameters())
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        cost = found.estimates[name].cost
        assert cost.state_bytes == optimizer.stats()["state_bytes"] == 4 * (36 * moments + 2)
        assert cost.elements == {"dp": 36}
