"""Watches how the losses of the micro-batches of one step are weighted."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher

#: How much the numbers of labels must differ, and how exactly shares must agree, as ratios.
_APART, _EQUAL = 1.02, 1e-3
#: The most micro-batches of a step that are remembered.
_MANY = 1024


@dataclass(frozen=True, slots=True)
class _Loss:
    """A cross entropy: its mean, its number of labels, and whether some are ignored."""

    mean: float
    labels: int
    padded: bool


class Losses(Watcher):
    """Sees cross entropies, and the backwards and steps that use them."""

    kinds = ("loss", "backward", "step", "zero_grad")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: The cross entropies since the last backward; None stands for one that is not understood.
        self._waiting: list[_Loss | None] = []
        #: The micro-batches since the last step, each with its share: what its mean is multiplied
        #: with.  None if one of them is not understood.
        self._window: list[tuple[_Loss, float]] | None = []

    def entered(self, moment: Moment) -> None:
        if moment.kind == "backward":
            if moment.outermost:
                self._uses(moment)
        elif moment.kind == "step":
            if moment.outermost:
                self._judge(self._window or ())
                self._window = []
        elif moment.kind == "zero_grad":
            self._window = []

    def left(self, moment: Moment) -> None:
        used = moment.kind == "loss" and not moment.failed and torch.is_grad_enabled()
        if used and len(self._waiting) < _MANY:
            self._waiting.append(_loss_of(moment))

    def _uses(self, moment: Moment) -> None:
        waiting, self._waiting = self._waiting, []
        total = moment.thing if isinstance(moment.thing, torch.Tensor) else None
        loss = waiting[0] if len(waiting) == 1 else None
        if self._window is None or loss is None or total is None or total.numel() != 1:
            self._window = None  # of several losses, none has a share of its own
        elif len(self._window) < _MANY and loss.mean:
            self._window.append((loss, float(total.detach()) / loss.mean))

    def _judge(self, window: list[tuple[_Loss, float]] | tuple[()]) -> None:
        """Whether each micro-batch is averaged over its own labels, of which some are ignored."""
        labels = [loss.labels for loss, _ in window]
        shares = [share for _, share in window]
        if len(window) < 2 or not any(loss.padded for loss, _ in window):
            return
        if max(labels) < _APART * min(labels) or not all(shares):
            return
        if max(shares) - min(shares) <= _EQUAL * abs(max(shares, key=abs)):
            self.training.slip(
                "tokens-unweighted",
                f"micro-batches of {min(labels)} to {max(labels)} labels have equal weights",
            )


def _loss_of(moment: Moment) -> _Loss | None:
    """What is known of a call of `cross_entropy`; None if its mean is not one over labels."""
    target, result = moment.argument(1, "target"), moment.result
    weight, reduction = moment.argument(2, "weight"), moment.argument(6, "reduction", "mean")
    if not isinstance(target, torch.Tensor) or target.dtype != torch.int64 or weight is not None:
        return None
    if not isinstance(result, torch.Tensor) or result.numel() != 1 or not result.requires_grad:
        return None
    labels = int((target != moment.argument(4, "ignore_index", -100)).sum())
    if reduction not in ("mean", "sum") or not labels:
        return None
    value = float(result.detach())
    return _Loss(value if reduction == "mean" else value / labels, labels, labels < target.numel())
