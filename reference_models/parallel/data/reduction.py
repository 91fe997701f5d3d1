"""Data parallelism in buckets: gradients are averaged over dp and cp while the backward goes on.

(Li et al. 2020, "PyTorch Distributed", section 3.2; Megatron-LM's `DistributedDataParallel`.)
The training loop makes one where `axes.techniques` asks for it; without, `gradients.py` sums
every parameter on its own after the backward.
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
    """The main gradients of `parameters`, each of which `backwards` backwards of a step reach.

    Takes what a backward adds to a parameter's gradient out of it as soon as it is there.  With
    overlap, a bucket is reduced once all its gradients have had their last addition; the ranks
    start buckets in one order, for their messages are told apart by nothing else.

    The reduction is a mean, of gradients of losses that are means over a rank's own tokens.  With
    ZeRO a rank receives its own share of each bucket, and what else is in it is of no use.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], axes: Axes, backwards: int) -> None:
        self.axes, self.backwards = axes, backwards
        # The sum over the copies of a tied embedding is taken after the reduce-scatter: both must
        # be cut alike, whatever else their stages have in buckets.
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
        """Reduce what is not yet, and wait for all."""
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
                f"a parameter of shape {list(parameter.shape)} had {additions} additions to its "
                f"gradient in a step of {self.backwards} micro-batches, the last of them after its "
                "bucket was reduced; set overlap_grad_reduce=False"
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
        # An expert's gradient has the terms of all ranks whose tokens came to it: the mean is
        # over all of dp and cp, also where the sum is over those with the same experts.
        divisor = self.axes.dp_cp.size
        if self.axes.planted("dp-gradient-scaling"):
            divisor = self.axes.dp.size  # but the sum is over cp as well
        bucket.gradients.mul_(1 / divisor)
        if self.axes.zero:
            self._underway.append(start_reduce_scatter(bucket.gradients, 0, bucket.axis))
        else:
            self._underway.append(start_all_reduce(bucket.gradients, bucket.axis))
