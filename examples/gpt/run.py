"""A run: training steps to the last one, each logged, with validations and checkpoints where they are due."""

import torch
from errors import Diverged, Problem
from interrupt import Interrupt
from log import Log
from options import Session
from progress import Progress
from trainer import Trainer


class Run:
    """A trainer, and where its progress goes: screen, log and checkpoints."""

    def __init__(self, trainer: Trainer, session: Session, fingerprint: int, log: Log, progress: Progress) -> None:
        self.trainer = trainer
        self.session = session
        self.fingerprint = fingerprint  # of the data
        self.log = log
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
