"""examples/gpt/comparison/study.py and cells.py: what a TOML file may say, and one sentence for what it may not."""

from pathlib import Path

import pytest
from comparison import cells, study
from comparison.study import STUDIES
from errors import Problem

from .studies import SMALL, read, written


@pytest.mark.parametrize("name", sorted(path.stem for path in STUDIES.glob("*.toml")))
def test_every_bundled_study_is_one_that_train_would_take(name: str) -> None:
    found = study.read(study.find(name))
    cells.check(found)
    assert sum(1 for part in found.parts for _ in cells.settings(found, part)) > 0


def test_a_cell_has_the_flags_of_its_contender_its_part_and_its_setting(tmp_path: Path) -> None:
    asked = read(
        tmp_path, SMALL + "flags = { clip = 0.5, mu = 0.9, nesterov = true }\n", rank_fraction="rank_fraction = 0.25"
    )
    setting = list(cells.settings(asked, asked.parts[0]))[1]
    recipe = cells.recipe_of(setting.cell(0.03, 2))
    assert (recipe.optimizer, recipe.d_model, recipe.heads, recipe.seed, recipe.clip) == ("dion", 16, 2, 2, 0.5)
    assert (recipe.batch, recipe.context, recipe.steps, recipe.val_every) == (2, 16, 8, 2)
    own = {"lr": 0.03, "rank_fraction": 0.25, "mu": 0.9, "nesterov": True}
    assert {name: recipe.hyperparameters[name] for name in own} == own


def test_cells_with_the_same_flags_are_one_whatever_their_part(tmp_path: Path) -> None:
    again = SMALL[SMALL.index("[[parts]]") :].replace('"one"', '"two"').replace('"A", ', "")
    asked = read(tmp_path, SMALL + again)
    first, second = (list(cells.settings(asked, part))[-1] for part in asked.parts)
    assert first.contender.name == second.contender.name
    assert first.cell(0.02, 1) == second.cell(0.02, 1)
    assert first.cell(0.02, 1) != second.cell(0.02, 2)


def test_a_base_is_laid_under_the_file(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "above.toml"
    path.write_text('base = "study"\n[model]\ncontext = 8\n[contenders.A]\nrates = [0.1, 0.2, 0.4]\n')
    asked = study.read(path)
    assert (asked.name, asked.context, asked.flags["layers"]) == ("above", 8, 1)
    assert asked.contenders["A"].rates == (0.1, 0.2, 0.4)
    assert asked.contenders["A"].flags == {"optimizer": "adamw"}


REFUSED = {
    "rates = [0.01, 0.02]": "rates must be three or more in geometric progression",
    "rates = [0.01, 0.02, 0.05]": "rates must be three or more in geometric progression",
    "rates = [0.01, -0.02, 0.04]": "rates must be positive numbers",
    'contenders = ["A", "C"]': "'C' is none of the contenders",
    "batches = [40]": "a batch of 40 tokens is no multiple of the context, 16",
    "batches = []": "batches must be a list of positive whole numbers",
    "steps = [8, 9]": "steps must be one positive number, or one for each batch",
    "steps = true": "steps is True, which should be a whole number or a list",
    "seeds = 0": "seeds must be at least 1, got 0",
    'title = "One"\nfigures = ["targets"]': "the figure targets needs until_loss",
    'title = "One"\nfigures = ["pies"]': "'pies' is no figure",
    'title = "One"\nnothing = 1': "nothing is not known here",
    "title = 3": "title is 3, which should be a text",
    "context = 16.5.1": "is no TOML",
    "head_width = 7": "a width of 16 is no multiple of head_width, 7",
    'optimizer = "sgd"': "part 'one', contender 'A': argument --optimizer: must be one of",
    "rank_fraction = 1.5": "part 'one', contender 'B r = d/2': argument --rank-fraction",
    'optimizer = "muon"': "--rank-fraction has no effect with --optimizer muon",
}


@pytest.mark.parametrize(("line", "sentence"), REFUSED.items(), ids=[line.replace("\n", " ") for line in REFUSED])
def test_what_cannot_be_is_refused_in_one_sentence(line: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(Problem) as refused:
        cells.check(read(tmp_path, **{line.partition(" ")[0]: line}))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_contenders_begin_with_equally_many_rates(tmp_path: Path) -> None:
    text = SMALL.replace("[0.01, 0.02, 0.04]", "[0.01, 0.02, 0.04, 0.08]", 1)
    with pytest.raises(Problem, match="its contenders begin with \\[3, 4\\] rates"):
        read(tmp_path, text)


def test_a_file_that_is_its_own_base_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="is its own base"):
        study.read(written(tmp_path, 'base = "study"'))


@pytest.mark.parametrize(("name", "sentence"), {"tiny": "the studies here are", "no.toml": "there is no file"}.items())
def test_a_study_that_is_not_there_is_said(name: str, sentence: str) -> None:
    with pytest.raises(Problem, match=sentence):
        study.find(name)
