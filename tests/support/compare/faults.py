"""Planted faults of one tensor: what each rank holds, as a WrongTensor to be explained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import xxhash

from pytest_trainsafe.align.merge import Part, merge
from pytest_trainsafe.core.indices import extract
from pytest_trainsafe.core.layout import Layout, Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.floating import FLOATING
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor

#: Sizes that all differ, so that a factor identifies its axis: tp*dp is 8, and there are 6
#: micro-batches.
POINT = Point.of(tp=4, dp=2)
MICROBATCHES = 6
ROWS, COLUMNS = 24, 16

At = dict[str, int]

#: Given the reference and a rank's coordinates: the whole tensor as this rank sees it.
View = Callable[[torch.Tensor, At], torch.Tensor]

WHOLE: Layout = ()
ROWS_OVER_TP: Layout = (Shard(0, "tp"),)


@dataclass(frozen=True)
class Fault:
    """A fault, and the name and axis of the pattern that must explain it."""

    view: View
    pattern: str
    axis: str = ""
    layout: Layout = WHOLE
    kind: str = "main_grad"
    noisy: bool = True


def drawn(name: str, *shape: int) -> torch.Tensor:
    """Normal values that depend on the name alone."""
    generator = torch.Generator().manual_seed(xxhash.xxh3_64_intdigest(name.encode()) >> 1)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def like(name: str, reference: torch.Tensor) -> torch.Tensor:
    """Other values of the reference's shape."""
    return drawn(name, *reference.shape)


def wrong_tensor(
    reference: torch.Tensor,
    view: View,
    layout: Layout = WHOLE,
    *,
    dtype: str = "float32",
    point: Point = POINT,
    kind: str = "main_grad",
    noisy: bool = True,
    earlier: dict[str, torch.Tensor] | None = None,
    terms: dict[int, torch.Tensor] | None = None,
    parameters: tuple[torch.Tensor, ...] = (),
) -> WrongTensor:
    """What the ranks hold when each sees the tensor as `view` says, with rounding in `dtype`."""
    parts = []
    for rank in range(point.world_size):
        at = point.coordinates(rank)
        seen = view(reference, at)
        if noisy:
            seen = rounded(seen, dtype)
        parts.append(Part(rank, at, extract(seen, layout, at, point.sizes), layout))
    value = merge(parts, point.sizes, shape=tuple(reference.shape)).tensor
    assert value is not None
    return WrongTensor(
        value=value,
        reference=reference,
        parts=parts,
        sizes=point.sizes,
        allowed=3 * rung_named(dtype).epsilon * FLOATING.norm(reference),
        kind=kind,
        dtype="float64" if dtype == "float64" else "float32",
        factors={"micro-batches": MICROBATCHES},
        earlier=earlier or {},
        terms=terms or {},
        parameters=parameters,
    )


def rounded(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """Noise of the size of rounding, the same for equal values, so that replicas stay equal."""
    seed = xxhash.xxh3_64_intdigest(tensor.contiguous().numpy().tobytes()) >> 1
    noise = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(seed)).double()
    return tensor * (1 + rung_named(dtype).epsilon * (2 * noise - 1))


def term(reference: torch.Tensor, place: int, size: int, name: str = "term") -> torch.Tensor:
    """One of `size` terms, drawn at random, whose sum is the reference."""
    if place:
        return like(f"{name} {place}", reference)
    return reference - sum(like(f"{name} {other}", reference) for other in range(1, size))


def rolled_off(reference: torch.Tensor, by: int) -> torch.Tensor:
    """The rows shifted by `by`; the first rows get other values."""
    moved = reference.roll(by, 0)
    moved[:by] = like("edge", reference)[:by]
    return moved


def shuffled(reference: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """The rows of the reference that have these numbers, in this order."""
    return reference[torch.tensor(rows)]


def with_rows(reference: torch.Tensor, start: int, stop: int, other: torch.Tensor) -> torch.Tensor:
    """The reference with some rows of another tensor."""
    changed = reference.clone()
    changed[start:stop] = other[start:stop]
    return changed


def _zeros_on(at: At, place: int, reference: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(reference) if at["tp"] == place else reference


def neighbour(reference: torch.Tensor, at: At) -> torch.Tensor:
    """The reference shifted so that every tp rank holds the part of the next one."""
    return reference.roll(-ROWS // 4, 0)


INTERLEAVED = [row // 2 + (row % 2) * ROWS // 2 for row in range(ROWS)]
COPIED = [*range(ROWS // 2), *range(ROWS // 2)]

FAULTS: dict[str, Fault] = {
    "zero": Fault(lambda r, at: torch.zeros_like(r), "zero"),
    "no update": Fault(lambda r, at: torch.zeros_like(r), "zero", kind="update"),
    "sum over dp": Fault(lambda r, at: term(r, at["dp"], 2), "partial sum", "dp"),
    "sum over tp": Fault(lambda r, at: term(r, at["tp"], 4), "partial sum", "tp"),
    "mean over dp": Fault(lambda r, at: 2 * term(r, at["dp"], 2), "partial sum", "dp"),
    "sum over dp of tp shards": Fault(
        lambda r, at: term(r, at["dp"], 2), "partial sum", "dp", ROWS_OVER_TP
    ),
    "sum over tp and dp": Fault(
        lambda r, at: term(r, at["tp"] + 4 * at["dp"], 8), "partial sum", "tp and dp"
    ),
    "times tp": Fault(lambda r, at: 4 * r, "scaled", "tp"),
    "over dp": Fault(lambda r, at: r / 2, "scaled", "dp"),
    "times dp*tp": Fault(lambda r, at: 8 * r, "scaled"),
    "over micro-batches": Fault(lambda r, at: r / 6, "scaled"),
    "sign": Fault(lambda r, at: -r, "scaled"),
    "factor": Fault(lambda r, at: 1.37 * r, "scaled"),
    "times tp, as an activation": Fault(lambda r, at: 4 * r, "scaled", "tp", kind="activation"),
    "a bias twice": Fault(lambda r, at: r + like("bias", r)[:1], "same term", kind="activation"),
    "another shard": Fault(neighbour, "another shard", "tp", ROWS_OVER_TP),
    "two shards exchanged": Fault(
        lambda r, at: shuffled(r, [*range(6, 12), *range(6), *range(12, 24)]),
        "another shard",
        "tp",
        ROWS_OVER_TP,
    ),
    "rows interleaved": Fault(lambda r, at: shuffled(r, INTERLEAVED), "permuted rows"),
    "rows copied": Fault(lambda r, at: shuffled(r, COPIED), "misplaced rows"),
    "one row on": Fault(lambda r, at: rolled_off(r, 1), "shifted"),
    "rolled by two": Fault(lambda r, at: r.roll(2, 1), "shifted"),
    "stale": Fault(lambda r, at: like("before", r), "stale"),
    "part of tp rank 2 zero": Fault(
        lambda r, at: _zeros_on(at, 2, r), "zero in part", "tp", ROWS_OVER_TP
    ),
    "rows zero": Fault(lambda r, at: with_rows(r, 3, 5, torch.zeros_like(r)), "zero in part"),
    "decay twice": Fault(lambda r, at: r - 0.5 * like("parameter", r), "decay", kind="update"),
    "no decay": Fault(lambda r, at: r + 0.5 * like("parameter", r), "decay", kind="update"),
    "decay after the update": Fault(
        lambda r, at: r - 0.5 * (like("parameter", r) + r), "decay", kind="update"
    ),
    "one row for several": Fault(
        lambda r, at: with_rows(r, 3, 10, like("row", r)[:1].expand_as(r)),
        "same row",
        kind="activation",
    ),
    "masked": Fault(lambda r, at: r * (like("mask", r) > -1), "zero in part"),
    "one left out": Fault(lambda r, at: r - like("micro-batch 5", r), "other micro-batches"),
    "one twice": Fault(lambda r, at: r + like("micro-batch 1", r), "other micro-batches"),
    "garbage in tp rank 1": Fault(
        lambda r, at: like("garbage", r) if at["tp"] == 1 else r, "confined", "tp", ROWS_OVER_TP
    ),
    "garbage in a row": Fault(lambda r, at: with_rows(r, 7, 8, like("row", r)), "confined"),
    "garbage": Fault(lambda r, at: like("garbage", r), ""),
    "too noisy": Fault(lambda r, at: r * (1 + 0.3 * like("loud", r)), ""),
}


def reference_tensor() -> torch.Tensor:
    """A sum of micro-batch gradients."""
    return sum(micro_batches().values(), torch.zeros(ROWS, COLUMNS, dtype=torch.float64))


def micro_batches() -> dict[int, torch.Tensor]:
    """The terms of the reference."""
    return {index: drawn(f"micro-batch {index}", ROWS, COLUMNS) for index in range(MICROBATCHES)}


def planted(name: str, dtype: str) -> WrongTensor:
    """The WrongTensor of a fault by name."""
    fault = FAULTS[name]
    reference = reference_tensor()
    return wrong_tensor(
        reference,
        fault.view,
        fault.layout,
        dtype=dtype,
        kind=fault.kind,
        noisy=fault.noisy,
        earlier={"of the previous step": like("before", reference)},
        terms=micro_batches(),
        parameters=(like("parameter", reference), like("parameter", reference) + reference),
    )
