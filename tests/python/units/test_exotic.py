"""Whatever the doors are given, they take it whole or refuse it in one sentence, and nothing has changed.

`pytest tests/python/units/test_exotic.py --cases 5000` draws more cases, `--case SEED` one alone.
"""

import copy
import random
import warnings
from collections.abc import Iterator
from typing import Any

import exotic
import pytest
import torch
from broken import why_broken
from refused import trained
from torch import Tensor
from torch.nn import Parameter

import torchdion
from torchdion.dion_package import _ALGORITHMS_OF, _ARGUMENTS
from torchdion.options import DEFAULTS
from torchdion.plain_values import is_same
from torchdion.table import ALGORITHMS

REFUSALS = (ValueError, TypeError, NotImplementedError, RuntimeError)  # the last for sparse gradients


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> list[int]:
    one, count = request.config.getoption("--case"), request.config.getoption("--cases")
    return list(range(count)) if one is None else [one]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def content(optimizer: torchdion.Dion, params: list[Parameter]) -> list[Any]:
    """All that a refusal must leave as it is, to the last bit."""
    tensors = [(param, param.detach().clone()) for param in params]
    states = {param: dict(state) for param, state in optimizer.state.items()}
    for state in states.values():
        tensors += [(value, value.clone()) for value in state.values()]
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return [tensors, states, groups, why_broken(optimizer)]


def assert_unchanged(optimizer: torchdion.Dion, before: list[Any], seed: int) -> None:
    tensors, states, groups, broken = before
    assert all(torch.equal(now.nan_to_num(), then.nan_to_num()) for now, then in tensors), f"--case {seed}"
    assert list(optimizer.state) == list(states), f"--case {seed}"
    for param, state in states.items():
        assert list(optimizer.state[param]) == list(state), f"--case {seed}"
        assert all(optimizer.state[param][key] is value for key, value in state.items()), f"--case {seed}"
    for group, then in zip(optimizer.param_groups, groups, strict=True):  # a NumPy number may become the plain one
        assert all(is_same(group[key], value) for key, value in then.items()), f"--case {seed}"
    assert why_broken(optimizer) == broken


def attempt(act: Any, seed: int) -> bool:
    """Whether it was taken; a refusal is one of ours."""
    try:
        act()
    except REFUSALS as refusal:
        sentence = str(refusal).split("Exception raised from")[0].strip()
        assert sentence.startswith(("torchdion.", "can't optimize a non-leaf Tensor")), f"--case {seed}: {refusal!r}"
        assert "\n" not in sentence, f"--case {seed}: {sentence}"
        assert len(sentence) < 600, f"--case {seed}: {sentence}"
        return False
    except Exception as error:
        raise AssertionError(f"--case {seed}: {error!r}") from error
    return True


def containers(value: Any, depth: int = 4) -> list[Any]:
    """The dictionaries and lists of a state dict that are not empty."""
    if not isinstance(value, (dict, list)) or not value or depth == 0:
        return []
    inside = value.values() if isinstance(value, dict) else value
    return [value, *(found for one in inside for found in containers(one, depth - 1))]


def damage_any(draw: random.Random, saved: dict[str, Any]) -> None:
    """One entry, wherever it is, goes, moves to another key, is there twice or becomes anything."""
    one = draw.choice(containers(saved) or [saved])
    place = draw.choice(list(one) if isinstance(one, dict) else range(len(one))) if one else "state"
    how = draw.randrange(4)
    if isinstance(one, list):
        if how == 0:
            del one[place]
        elif how == 1:
            one.append(draw.choice(one))
        else:
            one[place] = exotic.value(draw) if how == 2 else exotic.key(draw)
        return
    if how == 0:
        one.pop(place, None)
    elif how == 1:
        one[exotic.key(draw)] = one.pop(place, None)
    else:
        one[exotic.key(draw) if how == 2 else place] = exotic.value(draw)


def damaged(draw: random.Random, saved: dict[str, Any]) -> dict[str, Any]:
    """A state dict with one to three entries replaced, removed or added, at any depth."""
    for _ in range(draw.randint(1, 3)):
        where = draw.random()
        if where < 0.08:
            saved[draw.choice(["state", "param_groups", "other"])] = exotic.value(draw)
        elif where < 0.2:
            damage_any(draw, saved)
        elif where < 0.4 and isinstance(saved.get("param_groups"), list) and saved["param_groups"]:
            group = draw.choice(saved["param_groups"])
            if isinstance(group, dict):
                key = draw.choice([*DEFAULTS, "params", "param_names", "step", "beta1", "oversample", "lr_scale", "x"])
                group[key] = exotic.value(draw)
            if draw.random() < 0.1:
                saved["param_groups"][draw.randrange(len(saved["param_groups"]))] = exotic.value(draw)
        elif isinstance(saved.get("state"), dict) and saved["state"]:
            key = draw.choice(list(saved["state"]))
            state = saved["state"][key]
            if not isinstance(state, dict) or draw.random() < 0.1:
                saved["state"][key] = exotic.value(draw)
                continue
            name = draw.choice(["momentum", "Q", "variance", "step", "extra"])
            if draw.random() < 0.1:
                state.pop(name, None)
            elif draw.random() < 0.2:
                state[name] = exotic.value(draw)
            else:
                old = state.get(name)
                state[name] = exotic.tensor(draw, tuple(old.shape) if type(old) is Tensor and not old.is_nested else ())
    return saved


def test_a_damaged_state_dict_loads_whole_or_changes_nothing(seeds):
    taken = 0
    params, optimizer = trained()
    saved = copy.deepcopy(optimizer.state_dict())
    for seed in seeds:
        draw = random.Random(seed)
        before = content(optimizer, params)
        dictionary = damaged(draw, copy.deepcopy(saved))
        if attempt(lambda given=dictionary, optimizer=optimizer: optimizer.load_state_dict(given), seed):
            taken += 1
            states = [optimizer.state[param] for param in params if param in optimizer.state]
            own = [state[key] for state in states for key in ("momentum", "Q") if key in state]
            assert all(torchdion._C.has_memory(value) for value in own), f"--case {seed}"
            attempt(optimizer.step, seed)
            optimizer.stats()
            optimizer.state_dict()
            params, optimizer = trained()
        else:
            assert_unchanged(optimizer, before, seed)
    assert len(seeds) < 100 or 0.05 < taken / len(seeds) < 0.9


def of_the_dion_package(made_by: Any) -> list[str]:
    """Its arguments and group keys that a class takes."""
    arguments = [name for name in _ARGUMENTS if made_by.algorithm in _ALGORITHMS_OF[name]]
    return [*arguments, "num_heads", "split_sizes"]


def test_options_of_wrong_types_are_refused_by_name(seeds):
    taken = 0
    for seed in seeds:
        draw = random.Random(seed)
        X = Parameter(torch.ones(4, 3))
        made_by = draw.choice([torchdion.Dion, torchdion.Dion, torchdion.Muon, torchdion.Dion2, torchdion.Dion3])
        names = draw.sample([*DEFAULTS, "replicate_mesh_grad_sync", "mixed_precision_config"], draw.randint(1, 2))
        if draw.random() < 0.3:
            names = list({names[0], draw.choice(of_the_dion_package(made_by))})
        options = {name: exotic.value(draw) for name in sorted(names)}
        by_group = draw.random() < 0.5

        def make(made_by=made_by, X=X, options=options, by_group=by_group) -> None:
            allowed = {*made_by.__init__.__kwdefaults__, *_ARGUMENTS, "lr"}
            group = {name: value for name, value in options.items() if by_group or name not in allowed}
            rest = {name: value for name, value in options.items() if name not in group}
            group.pop("replicate_mesh_grad_sync", None)
            optimizer = made_by([{"params": [X], **group}], **rest)
            X.grad = torch.ones(4, 3)
            optimizer.step()

        taken += attempt(make, seed)
    assert len(seeds) < 100 or 0.02 < taken / len(seeds) < 0.9


def test_options_that_are_set_to_anything_are_refused_before_a_step_writes(seeds):
    params, optimizer = trained()
    for seed in seeds:
        draw = random.Random(seed)
        group, name = draw.choice(optimizer.param_groups), draw.choice(list(DEFAULTS))
        kept = dict(group)
        group[name] = exotic.value(draw)
        before = content(optimizer, params)
        if attempt(optimizer.step, seed):
            params, optimizer = trained()
        else:
            assert_unchanged(optimizer, before, seed)
            group.clear()
            group |= kept


def test_tensors_of_any_kind_train_or_are_refused_before_any_write(seeds):
    taken = 0
    for seed in seeds:
        draw = random.Random(seed)
        params, optimizer = trained()
        place = draw.randrange(len(params))
        param, role = params[place], draw.choice(["parameter", "gradient", "state", "scale"])
        others = [other for other in params if other is not param]
        state = optimizer.state[param]
        if role == "parameter":
            start = exotic.tensor(draw, tuple(param.shape))
            algorithm = draw.choice(list(ALGORITHMS))
            try:
                X = Parameter(start) if start.is_floating_point() and start.is_leaf else start
            except Exception:  # torch makes no parameter of it
                continue
            group = {"params": [X], "algorithm": algorithm, "batch_dims": 0}
            if not attempt(lambda group=group, optimizer=optimizer: optimizer.add_param_group(group), seed):
                continue
            try:
                X.grad = torch.ones(start.shape, dtype=start.dtype)
            except Exception:  # torch gives it no plain gradient
                continue
            others = params
        elif role == "gradient":
            gradient = exotic.tensor(draw, tuple(param.shape))
            try:
                param.grad = gradient
            except Exception:  # torch refuses to assign it
                continue
        elif role == "state":
            key = draw.choice(list(state))
            made = exotic.tensor(draw, tuple(state[key].shape))
            state[key] = made if draw.random() < 0.8 else exotic.value(draw)
            if draw.random() < 0.1:
                optimizer.state[param] = exotic.value(draw)
        else:
            for name in ("grad_scale", "found_inf"):
                setattr(optimizer, name, exotic.tensor(draw, ()) if draw.random() < 0.8 else exotic.value(draw))
        weights = [other.detach().clone() for other in others]
        momenta = [optimizer.state[other]["momentum"].clone() for other in others]
        if attempt(optimizer.step, seed):
            taken += 1
        else:
            assert all(map(torch.equal, others, weights)), f"--case {seed}"
            assert all(torch.equal(optimizer.state[p]["momentum"], m) for p, m in zip(others, momenta, strict=True))
            assert not why_broken(optimizer), f"--case {seed}"
    assert len(seeds) < 100 or 0.1 < taken / len(seeds) < 0.9
