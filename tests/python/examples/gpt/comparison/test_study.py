"""examples/gpt/comparison/study.py and cells.py: what a TOML file may say, and one sentence for what it may not."""

from pathlib import Path

import pytest
from comparison import cells, study
from comparison.study import OF_ALL, OF_THE_GRID, STUDIES
from errors import Problem
from flags import every_hyperparameter, training_parser

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


@pytest.mark.parametrize("on", [True, False])
def test_switches_are_flags_where_they_are_on(on: bool, tmp_path: Path) -> None:
    asked = read(tmp_path, SMALL + f"flags = {{ compile = {str(on).lower()}, nesterov = {str(on).lower()} }}\n")
    cell = list(cells.settings(asked, asked.parts[0]))[1].cell(0.03, 2)
    assert [flag for flag in ("--compile", "--no-compile") if flag in cell.arguments] == ["--compile"] * on
    assert ("--nesterov" if on else "--no-nesterov") in cell.arguments
    cells.recipe_of(cell)


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
    'contenders = ["A", "C"]': "contenders has 'C', which is none of A, B r = d/2",
    'contenders = ["A", "A"]': "contenders has 'A' twice",
    "contenders = []": "contenders is empty",
    'contenders = [["A"]]': "contenders has ['A'], which is none of",
    "batches = [40]": "a batch of 40 tokens is no multiple of the context, 16",
    "batches = []": "batches must be a list of different positive whole numbers",
    "steps = [8, 9]": "steps must be one positive number, or one for each batch",
    "steps = true": "steps is True, which should be a whole number or a list",
    "steps = [true]": "steps must be one positive number, or one for each batch",
    "seeds = 0": "seeds must be one positive number, or one for each width, got 0",
    "seeds = [3, 2]": "seeds must be one positive number, or one for each width, got [3, 2]",
    "batches = [32, 32]": "batches must be a list of different positive whole numbers",
    'name = "a/b"': "name must be of letters, digits, _ and -, got 'a/b'",
    'question = "Why?"\nfigures = ["targets"]': "the figure targets needs until_loss",
    'question = "Why?"\nuntil_loss = 2.0\nfigures = ["losses"]': "the figure losses is of parts without until_loss",
    'question = "Why?"\nfigures = ["pies"]': "figures has 'pies', which is none of",
    'question = "Why?"\nrates_up = [0, 1]': "rates_up must be one whole number, or one for each batch, got [0, 1]",
    'question = "Why?"\nrates_up = [1.5]': "rates_up must be one whole number, or one for each batch, got [1.5]",
    'question = "Why?"\nnothing = 1': "nothing is not known here",
    'question = "Why?"\nflags = { lr = 0.1 }': "lr cannot be set here",
    'question = "Why?"\nflags = { dp = 3 }': "--dp × --fs = 3 does not divide --batch 2",
    'question = "Why?"\nflags = { dp = 2, val_sequences = 7 }': "--dp × --fs = 2 does not divide --val-sequences 7",
    'optimizer = "adamw"\ncheckpoint_on_signal = false': "checkpoint_on_signal cannot be set here",
    'question = "Why?"\nflags = { compile = 1 }': "compile is 1, which is no value of a flag",
    "title = 3": "title is 3, which should be a text",
    "widen = 1\ndevice = 'gpu'": "device must be cpu or cuda, got 'gpu'",
    "context = 16.5.1": "is no TOML",
    "context = 0": "context must be at least 1, got 0",
    "context = '16'": "context is '16', which should be a whole number",
    "val_sequences = { a = 1 }": "val_sequences is {'a': 1}, which is no value of a flag",
    'optimizer = "adamw"\nsteps = 1000': "steps cannot be set here",
    'optimizer = "adamw"\nclip = 0.0': "clip cannot be set here",
    'optimizer = "adamw"\nscalar_lr = 0.5': "scalar_lr cannot be set here",
    'optimizer = "adamw"\nweight_decay = 0.0': "weight_decay cannot be set here",
    'optimizer = "adamw"\ncompress = "yes"': "compress is 'yes', which is no value of a flag",
    'question = "Why?"\nflags = { context = 8 }': "context cannot be set here",
    'question = "Why?"\nflags = { dp = [2] }': "dp is [2], which is no value of a flag",
    'optimizer = "adamw"\ncompress = true': "--compress is about what replicas send to each other",
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


def test_contenders_have_flags_of_their_optimizer_alone() -> None:
    flags = {action.dest for action in training_parser({})._actions} - {"help"}
    assert flags - every_hyperparameter() - {"optimizer", "compress"} <= OF_THE_GRID | OF_ALL


def test_contenders_begin_with_equally_many_rates(tmp_path: Path) -> None:
    text = SMALL.replace("[0.01, 0.02, 0.04]", "[0.01, 0.02, 0.04, 0.08]", 1)
    with pytest.raises(Problem, match="its contenders begin with \\[3, 4\\] rates"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[contenders.A]", "[contenders]\nC = 3\n[contenders.A]", "contender 'C' is 3, which should be a table"),
        (SMALL[SMALL.index("[[parts]]") :], "", "parts is missing"),
        (
            SMALL[SMALL.index("[model]") :],
            "parts = [1]\n[model]\ncontext = 8\n[contenders]",
            "parts has 1, which should be",
        ),
        (SMALL[SMALL.index("[model]") :], "parts = []\n[model]\ncontext = 8\n[contenders]", "parts is empty"),
        (
            'title = "A test"',
            'title = "A test"\nbase = "../x"',
            "base must be the name of a study, got '../x'",
        ),
        ('title = "A test"', 'title = "A test"\nbase = "nothing"', "nothing.toml cannot be read: No such file"),
    ],
)
def test_a_table_that_is_none_is_refused(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(Problem) as refused:
        read(tmp_path, SMALL.replace(old, new))
    assert sentence in str(refused.value)


OWN = """
import torch

def build(model, *, lr=0.5, mu=0.9, beta=0.5, nesterov=False):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=mu, nesterov=nesterov)

def clipping(model, *, lr=0.5, clip=1.0): ...
"""


def test_an_optimizer_of_ones_own_takes_the_flags_that_it_has(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    mine = f'optimizer = "{file}:build"\nmu = 0.8\nbeta = 0.25'
    text = SMALL.replace("[common]", '[common]\nscalar_lr = 0.05\nscalar_algorithm = "adamw"')
    asked = read(tmp_path, text.replace('optimizer = "adamw"', mine))
    cells.check(asked)
    recipe = cells.recipe_of(next(cells.settings(asked, asked.parts[0])).cell(0.03, 0))
    assert recipe.hyperparameters == {"lr": 0.03, "mu": 0.8, "beta": 0.25, "nesterov": False}
    with pytest.raises(Problem, match="the keyword clip of the optimizer's function is a flag of the training"):
        cells.check(read(tmp_path, text.replace('optimizer = "adamw"', f'optimizer = "{file}:clipping"')))


def test_rows_of_an_optimizer_of_ones_own_are_those_of_its_file(tmp_path: Path) -> None:
    keys = []
    for number in range(2):
        file = tmp_path / f"{number}" / "mine.py"
        file.parent.mkdir()
        file.write_text(OWN + f"# version {number}\n")
        asked = read(tmp_path, SMALL.replace('optimizer = "adamw"', f'optimizer = "{file}:build"'))
        cell = next(cells.settings(asked, asked.parts[0])).cell(0.03, 0)
        assert "--optimizer-file" not in cell.arguments
        cell.check_file()
        keys.append(cell.flags[cells.DIGEST])
    assert keys[0] != keys[1]
    file.write_text(OWN)
    with pytest.raises(Problem, match=r"mine.py:build has changed"):
        cell.check_file()


def test_the_study_that_the_readme_shows_is_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    text = (STUDIES / "README.md").read_text().split("```toml")[1].split("```")[0]
    path = tmp_path / "mine.toml"
    path.write_text(text.replace("path/to/mine.py", str(tmp_path / "mine.py")))
    asked = study.read(path)
    cells.check(asked)
    assert [part.name for part in asked.parts] == ["mine"]


def test_contenders_begin_with_rates_that_are_as_far_apart(tmp_path: Path) -> None:
    text = SMALL.replace("[0.01, 0.02, 0.04]", "[0.01, 0.0141, 0.02]", 1)
    with pytest.raises(Problem, match=r"the rates of its contenders are \[1.41, 2.0\] apart; all must be alike"):
        read(tmp_path, text)


def test_a_base_is_looked_for_beside_the_file_and_then_among_the_studies(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "small"\ntitle = "Mine"\n')
    assert study.read(path).parts[0].name == study.read(study.find("small")).parts[0].name
    (tmp_path / "small.toml").write_text(SMALL)
    assert study.read(path).parts[0].name == "one"
    (tmp_path / "small.toml").write_text('base = "small"\ntitle = "Mine"\n')
    assert [part.name for part in study.read(path).parts] == [
        part.name for part in study.read(study.find("small")).parts
    ]


def test_a_file_that_is_its_own_base_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="is its own base"):
        study.read(written(tmp_path, 'base = "study"'))


@pytest.mark.parametrize(("name", "sentence"), {"tiny": "the studies here are", "no.toml": "there is no file"}.items())
def test_a_study_that_is_not_there_is_said(name: str, sentence: str) -> None:
    with pytest.raises(Problem, match=sentence):
        study.find(name)


def test_a_part_moves_the_first_rates_of_a_batch(tmp_path: Path) -> None:
    text = SMALL.replace("batches = [32]", "batches = [32, 64, 128]") + "rates_up = [-2, 0, 1]\n"
    asked = read(tmp_path, text)
    found = {setting.batch: setting.rates for setting in cells.settings(asked, asked.parts[0])}
    assert found == {32: [0.0025, 0.005, 0.01], 64: [0.01, 0.02, 0.04], 128: [0.02, 0.04, 0.08]}
