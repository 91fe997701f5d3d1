"""The same pipelines with the schedules of torch.distributed.pipelining, instead of our own.

Since torch orders the work and sends the messages, such a pipeline can be a trusted reference for
a model that is too large for one device (TTrace, section 6.4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.microbatch import TensorChunkSpec, _Replicate
from torch.distributed.pipelining.schedules import get_schedule_class

from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.pipeline.pipeline import Inputs, Objective, Report
from pytest_trainsafe.reference_models.parallel.pipeline.schedules import TORCHS
from pytest_trainsafe.reference_models.parallel.pipeline.stages import Stage
from pytest_trainsafe.reference_models.training.main_gradients import accumulate

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


class TorchPipeline:
    """This rank's stages, run by one of torch's schedules.

    Raises ValueError if vpp > 1 and the schedule does not support several chunks on a rank.
    """

    def __init__(
        self, ctx: Context, stages: Sequence[Stage], axes: Axes, schedule: str, microbatches: int
    ) -> None:
        group, count = axes.pp.group, axes.pp.size * axes.vpp
        self.stages = stages
        self.name = TORCHS[schedule][axes.vpp > 1]
        if not self.name:
            raise ValueError(
                f"schedule={schedule!r} supports only one chunk per rank, but vpp={axes.vpp}; "
                "use vpp=1 or another schedule"
            )
        self.wrapped = [
            PipelineStage(stage, stage.number, count, ctx.device, group=group) for stage in stages
        ]
        ctx.follow(self.wrapped, microbatches)
        self._schedule: Any = None
        for stage in stages:
            for parameter in stage.parameters():
                # torch accumulates micro-batches in `grad`, which may be narrower than float32.
                parameter.register_post_accumulate_grad_hook(lambda each: accumulate([each]))  # type: ignore[no-untyped-call]

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

        See `Pipeline.run`; `after_backward` is called once, after the last backward.
        """
        if self._schedule is None:
            self._schedule = self._made(len(numbers), objective)
        given = [inputs(number) for number in numbers]
        tokens, targets = (torch.cat([each[place] for each in given]) for place in (0, 2))
        first = [tokens] if self.stages[0].first else []
        last = {"target": targets} if self.stages[-1].last else {}
        losses = self._schedule.step(*first, positions=given[0][1], targets=targets, **last)
        after_backward()
        if self.stages[-1].last:
            for number, part in zip(numbers, losses.chunk(len(numbers)), strict=True):
                report(part, number)

    def _made(self, microbatches: int, objective: Objective) -> Any:
        cls: Any = get_schedule_class(self.name)
        several = "Interleaved" in self.name
        rows: Any = TensorChunkSpec(0)  # type: ignore[no-untyped-call]
        return cls(
            self.wrapped if several else self.wrapped[0],
            microbatches,
            loss_fn=lambda losses, _targets: objective(losses),
            kwargs_chunk_spec={"positions": _Replicate, "targets": rows},
            scale_grads=False,
        )
