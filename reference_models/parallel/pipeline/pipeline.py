"""Pipeline parallelism: a rank runs its stages by a schedule and sends outputs to the next stage.

The training loop calls it once in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.pipeline.schedules import actions
from pytest_trainsafe.reference_models.parallel.pipeline.stages import Stage

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context

#: The tokens, positions and targets of a micro-batch, by its number in the step.
Inputs = Callable[[int], list[Tensor]]

#: Maps the losses of all tokens to the loss to differentiate.
Objective = Callable[[Tensor], Tensor]

#: Called with the losses of all tokens and the number of the micro-batch.
Report = Callable[[Tensor, int], None]


class Pipeline:
    """This rank's stages, and their messages to and from the stages of other ranks."""

    def __init__(self, stages: Sequence[Stage], axes: Axes, schedule: str) -> None:
        self.stages = stages
        self.axes = axes
        self.schedule = schedule
        self._entered: dict[tuple[int, int], Tensor] = {}
        self._left: dict[tuple[int, int], Tensor] = {}
        self._sent: list[tuple[Any, Tensor]] = []

    def run(
        self,
        ctx: Context,
        numbers: Sequence[int],
        inputs: Inputs,
        objective: Objective,
        report: Report,
        after_backward: Callable[[], None],
    ) -> None:
        """Runs the forward and backward of the micro-batches `numbers`; gradients accumulate.

        `inputs` returns the inputs of a micro-batch; `report` receives the losses of each one on
        the last stage, and `objective` turns them into the loss to differentiate.  Calls
        `after_backward` after each backward.
        """
        pp = self.axes.pp
        for action in actions(self.schedule, pp.rank, pp.size, self.axes.vpp, len(numbers)):
            number, stage = numbers[action.microbatch], self.stages[action.chunk]
            with ctx.microbatch(number):
                if action.kind == "forward":
                    left = self._forward(stage, number, inputs(number))
                    if stage.last:
                        report(left, number)
                        left = objective(left)
                    self._left[stage.number, number] = left
                else:
                    self._backward(stage, number)
                    after_backward()
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def _forward(self, stage: Stage, number: int, given: list[Tensor]) -> Tensor:
        tokens, positions, targets = given
        entered = tokens
        if not stage.first:
            entered = self._receive(stage, number, stage.hidden_like(tokens), stage.number - 1)
            self._entered[stage.number, number] = entered.requires_grad_()
        left: Tensor = stage(entered, positions, targets)
        if not stage.last:
            self._send(left.detach(), stage.number + 1, number, forward=True)
        return left

    def _backward(self, stage: Stage, number: int) -> None:
        left = self._left.pop((stage.number, number))
        gradient = None
        if not stage.last:
            gradient = self._receive(stage, number, left.detach(), stage.number + 1)
        left.backward(gradient)  # type: ignore[no-untyped-call]
        if not stage.first:
            entered = self._entered.pop((stage.number, number))
            assert entered.grad is not None
            self._send(entered.grad, stage.number - 1, number, forward=False)

    # Messages go through the CPU, because only gloo distinguishes messages by their tags.  Two
    # ranks that are neighbours on both sides do not receive them in the order of sending.

    def _send(self, tensor: Tensor, to: int, number: int, *, forward: bool) -> None:
        """Sends a tensor without waiting, because the receiver may have to send first."""
        message = tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
        tag = self._tag(to, number, forward=forward)
        work = dist.isend(message, self._rank(to), group=self.axes.pp.group, tag=tag)
        self._sent.append((work, message))

    def _receive(self, stage: Stage, number: int, like: Tensor, source: int) -> Tensor:
        message = torch.empty(like.shape, dtype=like.dtype)
        tag = self._tag(stage.number, number, forward=source < stage.number)
        dist.recv(message, self._rank(source), group=self.axes.pp.group, tag=tag)
        return message.to(like.device)

    def _rank(self, stage: int) -> int:
        group = self.axes.pp.group
        assert group is not None
        return dist.get_global_rank(group, stage % self.axes.pp.size)

    def _tag(self, to: int, number: int, *, forward: bool) -> int:
        stages = self.axes.pp.size * self.axes.vpp
        return (number * stages + to) * 2 + forward
