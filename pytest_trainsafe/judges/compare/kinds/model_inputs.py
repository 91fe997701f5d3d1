"""Compares the inputs that the program passes to its model with the reference's.

The layout of inputs is not declared: a rank may receive a whole micro-batch, its part of the
sequences, or values of its own (positions, offsets).  So an input that matches the reference in
some layout agrees.  An input that matches in no layout is not a finding by itself, because the
model's output may be correct.  It is the first finding if the forward of the same micro-batch is
wrong.  Called by the compare judge.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
import torch

from pytest_trainsafe.align.logical import parts_of
from pytest_trainsafe.align.merge import merge
from pytest_trainsafe.align.sketched import is_whole
from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.indices import LayoutError
from pytest_trainsafe.core.layout import Layout, Part, Shard, Split, Striped, ZigZag
from pytest_trainsafe.core.rungs.arithmetic import Arithmetic
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tensors.errors import finite
from pytest_trainsafe.judges.compare.tensors.tensor import judge_tensor
from pytest_trainsafe.trace.reader import Trace

#: The cause that reports give for a wrong input.
CAUSE = (
    "the program passes different data to its model: check the batches, the sampler and how a "
    "batch is divided among the ranks, not the model"
)


@dataclass(frozen=True, slots=True)
class InputJudgement:
    """The result of comparing one input of the model with the reference's.

    `verdict` is "agrees" if they are equal in some layout, and "differs" if they are equal in none.
    It is "unclear" if no layout can be expected to match, because ranks have values of their own or
    the model has other arguments.
    """

    verdict: Literal["agrees", "differs", "unclear"]
    pattern: Pattern | None = None


class ModelInputs:
    """Compares the model inputs in one rung: the traces of candidate and reference in one dtype."""

    def __init__(self, rung: RungTraces) -> None:
        self.rung = rung

    def judge(self, id: TensorId) -> InputJudgement:
        """Compare an input on the candidate's ranks with the reference's."""
        stages = self._stages(id)
        expected = _first(self.rung.reference, id)
        if expected is None or not stages:
            return InputJudgement("unclear")
        found = [self._part(id, parts, expected) for parts in stages]
        for verdict in ("differs", "agrees"):
            for given in found:
                if given.verdict == verdict:
                    return given
        return InputJudgement("unclear")

    def _stages(self, id: TensorId) -> list[list[Part]]:
        """The ranks' parts, grouped by pipeline stage."""
        trace = self.rung.candidate
        if not is_whole(trace, id):
            return []  # only sketches of large floating-point inputs are recorded
        stages: dict[int, list[Part]] = {}
        for part in parts_of(trace, id):
            stages.setdefault(part.coordinates["pp"], []).append(part)
        return list(stages.values())

    def _part(self, id: TensorId, parts: list[Part], expected: torch.Tensor) -> InputJudgement:
        """Compare the input of one stage's ranks."""
        first = parts[0].tensor
        if _family(first) != _family(expected) or first.ndim != expected.ndim:
            return InputJudgement("unclear")
        if self._fits(id, parts, expected):
            return InputJudgement("agrees")
        if any(
            self._fits(there, parts, other) and not self._has_its_own(there, parts[0], other)
            for there, other in self._beside(id)
        ):
            return InputJudgement("unclear")  # the arguments are in another order
        if any(part.tensor.shape != first.shape for part in parts):
            return InputJudgement("unclear")
        equal = [torch.equal(part.tensor, first) for part in parts]
        if first.shape != expected.shape:
            return self._cut(id, parts, expected, all(equal))
        right = [self._fits(id, [part], expected, alone=True) for part in parts]
        if any(right):
            odd = next(part.rank for part, fits in zip(parts, right, strict=True) if not fits)
            text = (
                f"rank {odd} receives values that differ from the reference's; other ranks receive "
                "the reference's values"
            )
            return _differs(text)
        if not all(equal):
            return InputJudgement("unclear")
        return self._other(id, parts[:1], expected)

    def _cut(
        self, id: TensorId, parts: list[Part], expected: torch.Tensor, equal: bool
    ) -> InputJudgement:
        """Judge parts that do not have the reference's shape, and equal the reference in no layout.

        The verdict is "unclear" in five cases: all parts have equal values (`equal`), no layout
        fits the shape of the parts, the input is floating-point, the parts cannot be merged, and
        the parts hold the reference's values in another order.  Otherwise the verdict is "differs".
        """
        layouts = list(_layouts(tuple(parts[0].tensor.shape), tuple(expected.shape), self._sizes()))
        if equal or not layouts or expected.is_floating_point():
            return InputJudgement("unclear")
        merged = _merged(parts, layouts[0], self._sizes(), expected, self.rung.numbers)
        if merged is None or torch.equal(
            merged.flatten().sort().values, expected.flatten().long().sort().values
        ):
            return InputJudgement("unclear")  # the same values in an unknown order
        return self._other(id, parts, expected)

    def _other(self, id: TensorId, parts: list[Part], expected: torch.Tensor) -> InputJudgement:
        """Returns a result with the verdict "differs" and a text that describes the difference.

        If the parts equal the reference's input of another micro-batch, the text names that
        micro-batch.  It names none whose noise is so large that `expected` equals it too.
        """
        for there in self._same_place(id):
            other = _first(self.rung.reference, there)
            if other is None or self._same(there, _wide(expected), other):
                continue
            if self._fits(there, parts, other, alone=len(parts) == 1):
                text = f"it equals the reference's input of {_when(there, id)}"
                return _differs(text)
        value = parts[0].tensor
        if value.shape != expected.shape:
            text = "the ranks' parts together hold different values than the reference's input"
        else:
            wrong = int((value != expected).sum())
            text = f"{wrong} of {expected.numel()} values differ from the reference's input"
        return _differs(text)

    def _fits(
        self, id: TensorId, parts: list[Part], expected: torch.Tensor, alone: bool = False
    ) -> bool:
        """Whether parts merge into `expected`, the reference's input `id`, in some layout.

        The noise of the input `id` is allowed, whatever input the parts belong to.  `alone` is true
        for the part of a single rank: then no part of another rank is needed.
        """
        if _family(parts[0].tensor) != _family(expected):
            return False
        sizes = self._sizes()
        known = parts[0].layout_source != "default"
        shape = tuple(parts[0].tensor.shape)
        layouts = [parts[0].layout] if known else _layouts(shape, tuple(expected.shape), sizes)
        for layout in layouts:
            merged = _merged(parts, layout, sizes, expected, self.rung.numbers, alone)
            if merged is not None and self._same(id, merged, expected):
                return True
        return False

    def _same(self, id: TensorId, merged: torch.Tensor, expected: torch.Tensor) -> bool:
        """Whether `merged` equals `expected`, the reference's input `id`, up to its noise."""
        wide, own = _wide(expected).numpy(), merged.numpy()
        if wide.shape != own.shape:
            return False
        if not expected.is_floating_point() or not finite(wide):
            return np.array_equal(wide, own, equal_nan=wide.dtype.kind in "fc")
        measured = [wide, *self._measured(id, wide.shape)]
        return judge_tensor(own, wide, measured, self.rung.dtype).passed

    def _measured(self, id: TensorId, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        """The values of the reference's input `id` in the runs that measure rounding."""
        for trace in self.rung.measures():
            other = _first(trace, id)
            if other is not None and tuple(other.shape) == shape:
                wide: np.ndarray = _wide(other).numpy()
                if finite(wide):
                    yield wide

    def _has_its_own(self, there: TensorId, like: Part, expected: torch.Tensor) -> bool:
        """Whether the input `there` of the candidate equals that of the reference, `expected`.

        Only the ranks in the pipeline stage of the part `like` are compared.
        """
        stage = like.coordinates["pp"]
        if not is_whole(self.rung.candidate, there):
            return False
        parts = parts_of(self.rung.candidate, there)
        parts = [part for part in parts if part.coordinates["pp"] == stage]
        return bool(parts) and self._fits(there, parts, expected)

    def _beside(self, id: TensorId) -> Iterator[tuple[TensorId, torch.Tensor]]:
        """Yields the reference's other inputs of the call that has the input `id`, with values."""
        for other in self.rung.reference.ids():
            alike = (other.step, other.microbatch, other.kind, other.call)
            if alike == (id.step, id.microbatch, id.kind, id.call) and other.name != id.name:
                tensor = _first(self.rung.reference, other)
                if tensor is not None:
                    yield other, tensor

    def _same_place(self, id: TensorId) -> Iterator[TensorId]:
        """Yields the ids of the input `id` in other micro-batches, those of the same step first."""
        named = [
            other
            for other in self.rung.reference.ids()
            if (other.kind, other.name, other.call) == ("input", id.name, id.call) and other != id
        ]
        yield from sorted(named, key=lambda other: (other.step != id.step, other))

    def _sizes(self) -> dict[str, int]:
        return self.rung.candidate.sizes


def _differs(text: str) -> InputJudgement:
    return InputJudgement("differs", Pattern("data", text, cause=CAUSE, short=text))


def _first(trace: Trace, id: TensorId) -> torch.Tensor | None:
    """The values of a reference's input on the first rank that has it; None if not recorded."""
    holders = trace.holders(id)
    if not holders or not holders[0][1].key:
        return None
    rank, event = holders[0]
    return trace.load(rank.rank, event)


def _merged(
    parts: list[Part],
    layout: Layout,
    sizes: dict[str, int],
    expected: torch.Tensor,
    numbers: Arithmetic,
    alone: bool = False,
) -> torch.Tensor | None:
    laid = [msgspec.structs.replace(part, layout=layout) for part in parts]
    free = tuple(sizes) if alone else ("pp", "dp")
    try:
        shape = tuple(expected.shape)
        merged = merge(laid, sizes, shape=shape, free_axes=free, numbers=numbers)
    except (LayoutError, IndexError):
        return None
    return None if merged.findings else merged.tensor


def _layouts(
    local: tuple[int, ...], whole: tuple[int, ...], sizes: dict[str, int]
) -> Iterator[Layout]:
    """The layouts in which parts of shape `local` make a tensor of shape `whole`."""
    if len(local) != len(whole):
        return
    choices: list[list[Layout]] = []
    for axis in ("dp", "cp", "tp"):
        cuts: list[Layout] = [()]
        if sizes[axis] > 1:
            for dim in range(len(whole)):
                cuts.append((Shard(dim, axis),))
                if axis == "cp":
                    cuts += [(ZigZag(dim, axis),), (Striped(dim, axis),)]
        choices.append(cuts)
    for each in itertools.product(*choices):
        layout = tuple(itertools.chain(*each))
        made = list(local)
        for placement in layout:
            assert isinstance(placement, Split)
            made[placement.dim] *= sizes[placement.axis]
        if tuple(made) == whole:
            yield layout


def _family(tensor: torch.Tensor) -> str:
    if tensor.is_complex():
        return "complex"
    return "float" if tensor.is_floating_point() else "integer"


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point():
        return tensor.to(torch.float64)
    return tensor if tensor.is_complex() or tensor.dtype == torch.bool else tensor.to(torch.int64)


def _when(there: TensorId, id: TensorId) -> str:
    step = "" if there.step == id.step else f" of step {there.step}"
    return f"micro-batch {there.microbatch}{step}"
