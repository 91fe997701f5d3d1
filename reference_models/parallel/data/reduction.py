"""Data parallelism in buckets: gradients are averaged over dp and cp, also during the backward.

(Li et al. 2020, "PyTorch Distributed", section 3.2; Megatron-LM's `DistributedDataParallel`.)
The training loop uses it if `axes.bucketed`; otherwise `gradients.py` sums the gradient of every
parameter separately after the backward.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis
from pytest_trainsafe.reference_models.parallel.collectives import (
    Underway,
    start_all_reduce,
    start_reduce_scatter,
)
from pytest_trainsafe.reference_models.parallel.data.buckets import fill_buckets
from pytest_trainsafe.reference_models.parallel.marks import is_expert, is_shared_embedding
from pytest_trainsafe.reference_models.training import main_gradients


class BucketedReduction:
    """Accumulates the main gradients of `parameters` in buckets, and averages them over ranks.

    In a step, `backwards` backwards add to the gradient of each parameter.  Each addition is moved
    from `grad` to the bucket at once.  With overlap, a bucket is reduced as soon as all its
    gradients have had their last addition.  All ranks start buckets in the same order, because the
    order is all that distinguishes their messages.

    The reduction is a mean, because each rank's loss is a mean over its own tokens.  With ZeRO, a
    rank receives its share of each bucket, and the rest of the bucket is not valid.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], axes: Axes, backwards: int) -> None:
        self.axes, self.backwards = axes, backwards
        # The gradients of the two copies of a tied embedding are summed after the reduce-scatter,
        # so both must be sharded alike, whatever other parameters their stages have.
        cut_alike = [each for each in parameters if is_shared_embedding(each)]
        if axes.planted("zero-tied-embedding"):
            cut_alike = []
        size = axes.techniques.bucket
        self.buckets = fill_buckets(parameters, size, self._copies, cut_alike)
        self._additions: dict[nn.Parameter, int] = {}
        self._underway: list[Underway] = []
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]

    def _copies(self, parameter: nn.Parameter) -> Axis:
        return self.axes.edp if is_expert(parameter) else self.axes.dp_cp

    def finish(self) -> None:
        """Starts the reductions that have not been started, and waits for all of them."""
        while len(self._underway) < len(self.buckets):
            self._start()
        own = slice(None)
        for bucket, underway in zip(self.buckets, self._underway, strict=True):
            if self.axes.zero:
                own = bucket.own
            bucket.gradients[own] = underway.wait()
        self._underway.clear()
        self._additions.clear()

    def _on_gradient(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        main_gradients.accumulate([parameter])
        additions = self._additions[parameter] = self._additions.get(parameter, 0) + 1
        if additions > self.backwards:
            raise RuntimeError(
                f"in a step of {self.backwards} micro-batches, {additions} terms were added to the "
                f"gradient of a parameter of shape {list(parameter.shape)}, so the last term may "
                "have been added after the gradient's bucket was reduced; set "
                "overlap_grad_reduce=False"
            )
        if self.axes.techniques.overlap_grad_reduce:
            while self._next_is_full():
                self._start()

    def _next_is_full(self) -> bool:
        if len(self._underway) == len(self.buckets):
            return False
        waiting = self.buckets[len(self._underway)].places
        return all(self._additions.get(each, 0) == self.backwards for each in waiting)

    def _start(self) -> None:
        bucket = self.buckets[len(self._underway)]
        # An expert's gradient has terms from all ranks that sent tokens to it.  So the mean is over
        # all of dp and cp, although the sum is only over the ranks with the same experts.
        divisor = self.axes.dp_cp.size
        if self.axes.planted("dp-gradient-scaling"):
            divisor = self.axes.dp.size  # but the sum is over cp as well
        bucket.gradients.mul_(1 / divisor)
        if self.axes.zero:
            self._underway.append(start_reduce_scatter(bucket.gradients, 0, bucket.axis))
        else:
            self._underway.append(start_all_reduce(bucket.gradients, bucket.axis))
