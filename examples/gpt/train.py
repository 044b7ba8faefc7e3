"""Train the Dion paper's GPT: `python examples/gpt/train.py`, with --help for every flag."""

import os
import shlex
import sys
from typing import Any

import against
import checkpoint
import corpus
import log
import options
import processes
import shards
from data import Source, Windows
from errors import Problem, run_script
from options import Recipe, Session
from presets import STANDARD_LIBRARY
from run import train_to_the_end
from sample import Sampling, default_prompt, sample_text
from tokenizer import Tokenizer, for_vocabulary
from trainer import Trainer


def open_data(recipe: Recipe) -> tuple[Windows, Windows]:
    """Training and validation windows."""
    split: tuple[Source, Source]
    if recipe.data == STANDARD_LIBRARY:
        split = corpus.standard_library()
    else:
        split = shards.open_split(recipe.data, recipe.val_data)
    train, validation = (Windows(source, recipe.context, recipe.vocab) for source in split)
    return train, validation


def sample_tokenizer(recipe: Recipe, session: Session) -> Tokenizer | None:
    """What the text at the end is read with; None if there will be none."""
    if session.sample_length == 0:
        return None
    try:
        return for_vocabulary(recipe.vocab)
    except Problem:
        # No reason to refuse a training run, unless the text was asked for.
        if session.prompt is not None:
            raise
        return None


def state_to_resume(session: Session) -> dict[str, Any] | None:
    """The newest checkpoint if this is to go on from one."""
    holds_run = (session.folder / log.NAME).exists() or bool(checkpoint.saved(session.folder))
    if not session.resume:
        if holds_run and not session.overwrite:
            raise Problem(f"{session.folder} holds a run already; give --resume, --overwrite or another --run")
        return None
    leads = os.environ.get("RANK", "0") == "0"  # of torchrun's processes, which have not met yet
    state = checkpoint.newest(session.folder, print if leads else lambda _: None)
    if state is None and leads:
        print(f"{session.folder} holds no checkpoint; starting from the first step", flush=True)
    return state


def resume_command(arguments: list[str], count: int) -> str:
    """For as many processes."""
    kept = [argument for argument in arguments if argument not in ("--resume", "--overwrite")]
    start = ["python"] if count == 1 else ["torchrun", "--nproc-per-node", str(count), "--"]
    return shlex.join([*start, sys.argv[0], *kept, "--resume"])


def sample_of(trainer: Trainer, tokenizer: Tokenizer, session: Session) -> str:
    """What the trained model writes."""
    recipe = trainer.recipe
    prompt = default_prompt(recipe.data) if session.prompt is None else session.prompt
    sampling = Sampling(session.sample_length, seed=recipe.seed)
    return sample_text(trainer.model, tokenizer, prompt, recipe.context, sampling)


def main(arguments: list[str]) -> int:
    given = options.parse(arguments)
    session = options.session(given)
    state = state_to_resume(session)
    recipe = options.recipe(given, session.device, state["recipe"] if state else None)
    tokenizer = sample_tokenizer(recipe, session)
    windows, validation = open_data(recipe)
    fingerprint = windows.fingerprint()
    other = against.open_other(recipe, session, fingerprint)
    ranks = processes.start(session.job, session.device.type)
    ranks.check_folder(session.folder)
    trainer = Trainer(recipe, session.device, windows, validation, session.compile, ranks)
    if state is not None:
        if state["data"] != fingerprint:
            raise Problem(f"the data of --data {recipe.data} have changed since the checkpoint was written")
        trainer.load_state_dict(state)
        del state
        if ranks.speaks:
            print(f"resuming {session.folder} after step {trainer.step}", flush=True)
    had_all = trainer.step >= recipe.steps
    interrupted = train_to_the_end(trainer, session, fingerprint)
    if had_all and other is None:
        ranks.finish()
        return 0
    text = None if interrupted or tokenizer is None else sample_of(trainer, tokenizer, session)
    if interrupted is None and other is not None:
        del trainer  # with its memory
        interrupted = other.train(windows, validation)
    if interrupted is not None:
        if ranks.speaks:
            command = resume_command(arguments, session.job.processes)
            print(f"interrupted after step {interrupted.step}; to go on: {command}")
        ranks.finish()
        return 128 + interrupted.signal
    if text is not None and ranks.speaks:
        print(f"\n{text}")
    if other is not None:
        folders = (session.folder, other.session.folder)
        print(f"\n{against.outcome(folders)}\n{against.picture(folders)}")
    ranks.finish()
    return 0


if __name__ == "__main__":
    run_script(main)
