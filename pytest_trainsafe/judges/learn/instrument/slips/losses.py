"""Watches how the losses of the micro-batches of one step are weighted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import torch
import torch.distributed as dist
from torch import nn

from pytest_trainsafe.judges.learn.instrument.slips.inputs.criteria import is_node
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher

#: How much the numbers of labels must differ, and how exactly shares must agree, as ratios.
_APART, _EQUAL = 1.02, 1e-3
#: The loss whose labels are counted.
_LABELLED = "torch.nn.functional.cross_entropy"
#: The position of the reduction of losses that are averaged over numbers.
_OF_NUMBERS = {
    **dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss"), 4),
    "huber_loss": 2,
    "binary_cross_entropy_with_logits": 5,
}
#: So many losses that are added are micro-batches of one kind.
_SUMMED = 3
#: So many windows are alike, and so many examples are no chance, before a division is judged.
_WINDOWS, _ROWS = 3, 4
#: The most micro-batches of a step that are remembered.
_MANY = 1024


@dataclass(frozen=True, slots=True)
class _Loss:
    """A loss: its mean, its number of labels, and whether some are ignored.

    `target` is a hash of the labels, and `runs` how many models had run by then since the last
    step.  `averaged` says that the loss is the mean, and `rows` is the first size of the target.
    """

    mean: float
    labels: int
    padded: bool
    target: int
    runs: int
    averaged: bool
    rows: int


class Losses(Watcher):
    """Sees losses, models that run, and the backwards and steps that use them."""

    kinds = ("loss", "module", "backward", "step", "zero_grad")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: The losses since the last backward; None stands for one that is not understood.
        self._waiting: list[_Loss | None] = []
        #: The micro-batches since the last step, each with its share: what its mean is multiplied
        #: with.  None if one of them is not understood.
        self._window: list[tuple[_Loss, float]] | None = []
        self._runs = 0
        #: The number of micro-batches of the first window whose losses were divided by it.
        self._usual = 0
        #: Whether a division makes what each backward of the window begins with, and whether a
        #: wrapper averages its gradients.
        self._divisions: list[bool] = []
        self._wrapped = False
        #: The number of micro-batches of the last windows, what their losses were divided by, and
        #: how many windows in succession that were.
        self._last: tuple[int, int] = (0, 0)
        self._firsts: list[tuple[int, int]] = []
        self._times = 0

    def entered(self, moment: Moment) -> None:
        if moment.kind == "module":
            if moment.outermost and next(moment.thing.parameters(), None) is not None:
                self._runs += 1
                self._wrapped |= isinstance(moment.thing, nn.parallel.DistributedDataParallel)
        elif moment.kind == "backward":
            if moment.outermost:
                self._uses(moment)
        elif moment.kind == "step":
            if moment.outermost:
                self._judge(self._window or ())
                self._summed(self._window or ())
                self._grew(self._window or ())
                self._divided(self._window or ())
                self._window, self._divisions, self._runs = [], [], 0
                self._wrapped = False
        elif moment.kind == "zero_grad":
            self._window, self._divisions = [], []

    def left(self, moment: Moment) -> None:
        if moment.kind != "loss" or moment.failed or not torch.is_grad_enabled():
            return
        at = _OF_NUMBERS.get(moment.api.rpartition(".")[2])
        if len(self._waiting) < _MANY and (at or moment.api == _LABELLED):
            self._waiting.append(self._number_of(moment, at) if at else self._loss_of(moment))

    def _uses(self, moment: Moment) -> None:
        waiting, self._waiting = self._waiting, []
        total = moment.thing if isinstance(moment.thing, torch.Tensor) else None
        loss = waiting[0] if len(waiting) == 1 else None
        if self._window is None or loss is None or total is None or total.numel() != 1:
            self._window = None  # of several losses, none has a share of its own
        elif len(self._window) < _MANY and loss.mean:
            self._window.append((loss, float(total.detach()) / loss.mean))
            self._divisions.append(is_node(total.grad_fn, "Div"))

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

    def _summed(self, window: list[tuple[_Loss, float]] | tuple[()]) -> None:
        """Whether micro-batches, each of which a model ran for, are added without a division.

        Two may be those of two domains, or the two terms of a loss.
        Micro-batches differ in their labels; the parts of one batch have the same ones.
        """
        losses = [loss for loss, _ in window]
        if len(losses) < _SUMMED or not all(loss.averaged for loss in losses):
            return
        targets, runs = {loss.target for loss in losses}, {loss.runs for loss in losses}
        undivided = _are([share for _, share in window], 1.0)
        if undivided and len(targets) == len(runs) == len(losses):
            self.training.slip(
                "window-summed", f"the step adds the means of {len(losses)} micro-batches"
            )

    def _grew(self, window: list[tuple[_Loss, float]] | tuple[()]) -> None:
        """Whether a step takes more micro-batches than their losses are divided by.

        A program may take more from some step on, and divides by their number then.
        """
        shares = [share for _, share in window]
        count = len(shares)
        if not self._usual and count > 1 and _are(shares, 1 / count):
            self._usual = count
        elif count > self._usual > 1 and _are(shares, 1 / self._usual):
            self.training.slip(
                "window-grew", f"{count} backwards, whose losses are divided by {self._usual}"
            )

    def _divided(self, window: list[tuple[_Loss, float]] | tuple[()]) -> None:
        """Whether losses are divided once more by what they were, or by another number.

        It is judged after some windows that are alike; a weight is multiplied with.
        """
        shares = [share for _, share in window]
        by = round(1 / shares[0]) if shares and shares[0] > 0 and all(self._divisions) else 0
        now = (len(window), by) if by > 1 and _are(shares, 1 / by) else (0, 0)
        if now != (0, 0):
            self._begins(now)
        self._times = self._times + 1 if now == self._last else 1
        self._last = now
        if not window or now == (0, 0) or self._times != _WINDOWS:
            return
        loss, ranks = window[0][0], _ranks()
        if len(window) == 1 and self._wrapped and by == ranks:
            self.training.slip("averaged-and-divided", f"by {by}, and there are {ranks} ranks")
        elif len(window) == 1 and loss.averaged and by in (loss.rows, loss.labels) and by >= _ROWS:
            self.training.slip("mean-divided", f"the mean over {loss.labels} is divided by {by}")
        elif len(window) > 1 and by % len(window) and ranks == 1:
            self.training.slip("window-misdivided", f"{len(window)} losses are divided by {by}")

    def _begins(self, window: tuple[int, int]) -> None:
        """Whether the first window is shorter than what its losses are divided by.

        The next one tells that this is the length of a window.
        """
        if len(self._firsts) == 1:
            (count, by), (length, divisor) = self._firsts[0], window
            if count < by == length == divisor:
                self.training.slip("window-short", f"{count} backward first, and {length} next")
        self._firsts = [*self._firsts, window][:2]

    def _number_of(self, moment: Moment, at: int) -> _Loss | None:
        """What is known of a loss of numbers; None if it is no mean, or of a constant target.

        The target of a critic is 1 for some micro-batches and 0 for others, which are added.
        """
        target, result = moment.argument(1, "target"), moment.result
        if moment.argument(at, "reduction", "mean") != "mean" or not _is_loss(result):
            return None
        if not isinstance(target, torch.Tensor) or not target.numel() or target.requires_grad:
            return None
        low, high = target.detach().aminmax()
        if bool(low == high):
            return None
        digest = self.training.digest(target, False)
        rows = len(target) if target.dim() else 1
        return _Loss(float(result.detach()), target.numel(), False, digest, self._runs, True, rows)

    def _loss_of(self, moment: Moment) -> _Loss | None:
        """What is known of a call of `cross_entropy`; None if its mean is not one over labels."""
        target, result = moment.argument(1, "target"), moment.result
        weight, reduction = moment.argument(2, "weight"), moment.argument(6, "reduction", "mean")
        plain = isinstance(target, torch.Tensor) and target.dtype == torch.int64
        if not plain or weight is not None:
            return None
        if not _is_loss(result):
            return None
        labels = int((target != moment.argument(4, "ignore_index", -100)).sum())
        if reduction not in ("mean", "sum") or not labels:
            return None
        value, averaged = float(result.detach()), reduction == "mean"
        return _Loss(
            value if averaged else value / labels,
            labels,
            labels < target.numel(),
            self.training.digest(target, False),
            self._runs,
            averaged,
            len(target) if target.dim() else 1,
        )


def _ranks() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _are(shares: list[float], share: float) -> bool:
    return all(abs(each - share) <= _EQUAL * share for each in shares)


def _is_loss(result: object) -> TypeGuard[torch.Tensor]:
    return isinstance(result, torch.Tensor) and result.numel() == 1 and result.requires_grad
