"""Compressed data parallelism under the Trainer of transformers."""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from torchdion.ddp import ddp_comm_hook
from torchdion.optimizer import Optimizer


class CompressedReplicas(TrainerCallback):
    """Registers :func:`torchdion.ddp_comm_hook` when a training begins, and synchronizes momenta before each save.

    The Trainer saves the optimizer's state on rank 0 alone, so that it is too late then for all ranks to take part.
    Clipping (``max_grad_norm``) is by each replica's own norm.

    Args:
        trainer: whose optimizer is any of torchdion's with a ``replicate_mesh``.

    Raises:
        TypeError: when the training begins, an optimizer of another package.
        ValueError: at the first backward pass, one that does not average over the ranks of the model.

    Example::

        trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None))
        trainer.add_callback(CompressedReplicas(trainer))
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        optimizer = self._optimizer()
        model: torch.nn.Module = self._trainer.model_wrapped
        model = getattr(model, "_orig_mod", model)  # what torch.compile has wrapped
        if isinstance(model, DistributedDataParallel) and (ddp_comm_hook, optimizer) not in model._comm_hooks:
            model.register_comm_hook(optimizer, ddp_comm_hook)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if control.should_save:
            self._optimizer().synchronize_for_checkpoint()

    on_epoch_end = on_step_end

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.save_strategy == "best":  # whether this is one, is decided next
            self._optimizer().synchronize_for_checkpoint()

    def _optimizer(self) -> Optimizer:
        optimizer = self._trainer.optimizer
        optimizer = getattr(optimizer, "optimizer", optimizer)  # what accelerate has wrapped
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                "torchdion.transformers: CompressedReplicas is for a Trainer whose optimizer is one of torchdion's "
                f"with a replicate_mesh, got {type(optimizer).__module__}.{type(optimizer).__qualname__}"
            )
        return optimizer
