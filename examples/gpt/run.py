"""A run: training steps to the last one, each logged, with validations and checkpoints where they are due."""

from dataclasses import dataclass

import checkpoint
import log
import torch
from errors import Diverged, Problem
from interrupt import Interrupt
from log import Log
from options import Session
from progress import Progress
from trainer import Trainer


@dataclass(frozen=True)
class Interrupted:
    """A run that a signal ended after `step` steps."""

    signal: int
    step: int


class Run:
    """A trainer, and where its progress goes: screen, log and checkpoints."""

    def __init__(self, trainer: Trainer, session: Session, fingerprint: int, out: Log, progress: Progress) -> None:
        self.trainer = trainer
        self.session = session
        self.fingerprint = fingerprint  # of the data
        self.log = out
        self.progress = progress
        self._saved = trainer.step  # the step of the newest checkpoint

    def finish(self) -> int | None:
        """Train to the last step, or the loss asked for.

        Returns the number of a signal that ended it before, with a checkpoint written if the session asks for that.
        """
        processes = self.trainer.processes
        with Interrupt(processes.repeated_signals) as interrupt:
            while self.trainer.step < self.trainer.recipe.steps:
                caught = processes.largest(interrupt.signal or 0)
                if caught:
                    if self.session.checkpoint_on_signal:
                        self._save()
                    return caught
                try:
                    if self._advance():
                        break
                except Diverged:
                    self.log.write("diverged", self.trainer.step)
                    raise
                except torch.OutOfMemoryError as error:
                    sentence = f"{self.session.device} is out of memory; a smaller --micro-batch needs less"
                    raise Problem(sentence, code=1) from error
        return None

    def _advance(self) -> bool:
        """One step and what is due after it; whether the validation loss is as low as the session asks for."""
        trainer, recipe = self.trainer, self.trainer.recipe
        report = trainer.train_step()
        self.log.write(
            "train",
            trainer.step,
            loss=report.loss,
            lr=report.lr,
            grad_norm=report.grad_norm,
            seconds=trainer.seconds,
            tokens_per_second=report.tokens_per_second,
            optimizer_ms=report.optimizer_ms,
        )
        self.progress.update(trainer.step, report.loss, report.tokens_per_second, report.optimizer_ms)
        last, reached = trainer.step == recipe.steps, False
        if last or trainer.step % recipe.val_every == 0:
            loss = trainer.validate()
            self.log.write("validation", trainer.step, loss=loss, seconds=trainer.seconds)
            self.progress.say(f"step {trainer.step}/{recipe.steps}: validation loss {loss:.4f}")
            reached = loss <= self.session.until_loss
        if last or reached or trainer.step % self.session.checkpoint_every == 0:
            self._save()
        return reached

    def _save(self) -> None:
        if self._saved == self.trainer.step:
            return
        self._saved = self.trainer.step
        self.log.sync()
        more = {"recipe": self.trainer.recipe.as_dict(), "data": self.fingerprint}
        self.trainer.save(self.session.folder, self.session.keep, more)


def train_to_the_end(trainer: Trainer, session: Session, fingerprint: int) -> Interrupted | None:
    """Makes the steps that are left, from whatever the session's folder holds of them.

    Args:
        fingerprint: of the data.

    Returns:
        What ended it before, if something did.
    """
    speaks = trainer.processes.speaks
    if trainer.step >= trainer.recipe.steps:
        if speaks:
            print(f"{session.folder} has all of its {trainer.recipe.steps} steps already", flush=True)
        return None
    if speaks:
        prepare_folder(session, trainer.step)
    with (
        Log(session.folder if speaks else None, trainer.step, session.tensorboard) as out,
        Progress(trainer.step, trainer.recipe.steps, speaks) as bar,
    ):
        if trainer.step == 0:
            recipe = trainer.recipe.as_dict()
            out.write("run", 0, recipe=recipe, device=str(session.device), torch=torch.__version__)
        caught = Run(trainer, session, fingerprint, out, bar).finish()
    return None if caught is None else Interrupted(caught, trainer.step)


def prepare_folder(session: Session, step: int) -> None:
    """Make the folder hold what belongs to the first `step` steps and nothing else."""
    session.folder.mkdir(parents=True, exist_ok=True)
    checkpoint.remove_unfinished(session.folder)
    if step == 0:
        checkpoint.remove_all_but(session.folder, 0)
        (session.folder / log.NAME).unlink(missing_ok=True)
    else:
        log.truncate(session.folder / log.NAME, step)
