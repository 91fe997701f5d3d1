"""The views of the built-in relations: merged, cropped, scaled and folded tensors.

A View turns the recorded tensors of one Run into tensors that the other Run should have recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_trainsafe.judges.metamorphic.relations.relation import KEEP, Combine, View

if TYPE_CHECKING:
    import torch

    from pytest_trainsafe.core.tensor_id import TensorId
    from pytest_trainsafe.trace.schema import TensorEvent

#: How the loss of merged micro-batches is made from their losses; "none" leaves it out.
LossOf = Literal["mean", "sum", "none"]

#: Kinds of gradients that a backward yields, before the program has changed them.
_RAW = frozenset({"activation_grad", "param_grad"})


@dataclass(frozen=True, slots=True)
class Merged(View):
    """Merges every `count` consecutive micro-batches into one.

    Gradients of parameters are added.  Buffers of micro-batches are left out, because their values
    depend on how often the forward ran.  `loss` says whether the merged loss is the "mean" or the
    "sum" of the losses, or is left out ("none").
    Other tensors (inputs, activations, decisions, gradients of activations) are joined along the
    dimension that is `count` times as long in the other Run.  If their shape is the same in both
    Runs, gradients are added, and all tensors that are not gradients are kept if the micro-batches
    have equal values, and are left out if they have not.
    """

    count: int
    loss: LossOf = "mean"

    def place(self, id: TensorId) -> TensorId | None:
        if id.microbatch is None:
            return id
        if id.kind == "buffer":
            return None
        from msgspec import structs  # programs import this module when tests are collected

        return structs.replace(id, microbatch=id.microbatch // self.count)

    def combine(
        self, id: TensorId, parts: Sequence[TensorEvent], like: tuple[int, ...] | None
    ) -> Combine | str | None:
        if id.microbatch is None:
            return KEEP
        if id.kind == "param_grad":
            return _sum
        if len(parts) != self.count:
            return None
        if id.kind == "loss":
            return {"mean": _mean, "sum": _sum, "none": None}[self.loss]
        shapes = {part.shape for part in parts}
        if like is None or len(shapes) != 1:
            return None
        [shape] = shapes
        if shape == like:
            if id.kind == "activation_grad":
                return _sum
            return _first if len({part.hash for part in parts}) == 1 else None
        dim = _multiple(shape, like, self.count)
        return None if dim is None else _Join(dim)


@dataclass(frozen=True, slots=True)
class Cropped(View):
    """Crops the tensors of a Run to the shapes that they have in the other Run.

    Rows have `longer` entries in this Run and `length` entries in the other.  A dimension that has
    `k * longer` entries in this Run and `k * length` in the other consists of k rows.  Each row is
    cropped to its first `length` entries.  With `outermost`, the dimension is cropped to its first
    `k * length` entries instead.
    """

    length: int
    longer: int
    outermost: bool = False

    def combine(
        self, id: TensorId, parts: Sequence[TensorEvent], like: tuple[int, ...] | None
    ) -> Combine | str | None:
        [part] = parts
        if like is None or part.shape == like or len(part.shape) != len(like):
            return KEEP
        cuts = []
        for dim, (have, want) in enumerate(zip(part.shape, like, strict=True)):
            if have == want:
                continue
            if have * self.length != want * self.longer or want % self.length:
                return KEEP  # the change does not explain this shape; the comparison reports it
            rows = 1 if self.outermost else want // self.length
            cuts.append((dim, rows, want // rows))
        return _Crop(tuple(cuts))


@dataclass(frozen=True, slots=True)
class Scaled(View):
    """Divides the gradients of activations and parameters in each micro-batch by `factor`.

    Other tensors are unchanged.
    """

    factor: float

    def combine(
        self, id: TensorId, parts: Sequence[TensorEvent], like: tuple[int, ...] | None
    ) -> Combine | str | None:
        return _Times(1 / self.factor) if id.kind in _RAW else KEEP


@dataclass(frozen=True, slots=True)
class Folded(View):
    """Folds the `count` copies of each row into one row.

    The result is the sum of the copies for gradients of activations, and the mean for other
    tensors; integers are taken from the first copy.
    """

    count: int

    def combine(
        self, id: TensorId, parts: Sequence[TensorEvent], like: tuple[int, ...] | None
    ) -> Combine | str | None:
        [part] = parts
        if like is None or part.shape == like:
            return KEEP
        dim = _multiple(like, part.shape, self.count)
        if dim is None:
            return KEEP
        return _Fold(dim, self.count, add=id.kind == "activation_grad")


@dataclass(frozen=True, slots=True)
class _Join:
    dim: int

    def __call__(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        import torch

        return torch.cat(list(parts), self.dim)


@dataclass(frozen=True, slots=True)
class _Crop:
    """Crops a tensor in one or more dimensions.

    Each entry of `cuts` has a dimension, the number of equal rows that the dimension consists of,
    and the number of entries that are kept at the beginning of each row.
    """

    cuts: tuple[tuple[int, int, int], ...]

    def __call__(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        [tensor] = parts
        for dim, rows, kept in self.cuts:
            apart = _in_rows(tensor, dim, rows)
            tensor = apart.narrow(dim + 1, 0, kept).flatten(dim, dim + 1)
        return tensor


@dataclass(frozen=True, slots=True)
class _Times:
    factor: float

    def __call__(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        [tensor] = parts
        return tensor * self.factor


@dataclass(frozen=True, slots=True)
class _Fold:
    dim: int
    count: int
    add: bool

    def __call__(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        [tensor] = parts
        copies = _in_rows(tensor, self.dim, self.count)
        if self.add:
            return copies.sum(self.dim)
        # Integers, such as tokens or choices, have no mean.
        return copies.mean(self.dim) if copies.is_floating_point() else copies.select(self.dim, 0)


def _in_rows(tensor: torch.Tensor, dim: int, rows: int) -> torch.Tensor:
    """A tensor whose dimension `dim` is split into two: `rows`, and the entries of one row.

    A tensor of shape [..., n, ...] gets the shape [..., rows, n / rows, ...].
    """
    shape = tensor.shape
    return tensor.reshape(*shape[:dim], rows, shape[dim] // rows, *shape[dim + 1 :])


def _sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    import torch

    return torch.stack(list(parts)).sum(0)


def _mean(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return _sum(parts) / len(parts)


def _first(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0]


def _multiple(short: tuple[int, ...], long: tuple[int, ...], count: int) -> int | None:
    """The only dimension in which two shapes differ, if `long` has `count` times as many entries.

    None if the shapes differ in another way.
    """
    if len(short) != len(long):
        return None
    unlike = [dim for dim, (a, b) in enumerate(zip(short, long, strict=True)) if a != b]
    if len(unlike) != 1 or long[unlike[0]] != count * short[unlike[0]]:
        return None
    return unlike[0]
