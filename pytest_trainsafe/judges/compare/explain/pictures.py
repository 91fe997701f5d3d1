"""Pictures of the first wrong tensors for a page: values, shards, and elements that differ most.

Made by the ladder, because traces do not outlive the test.  Values are kept small: the first wrong
tensor has up to 128 x 128 values, the others 32 x 32.  Of a larger tensor each value stands for a
block, of which it is the element that differs most.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.sketched import is_whole
from pytest_trainsafe.align.updates import update_parts
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.indices import LayoutError, index_arrays, split_flat
from pytest_trainsafe.core.layout import Part
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tensors.values import Values
from pytest_trainsafe.report.panels import Border, Map, Maps, Panel, Table
from pytest_trainsafe.report.sections import label

#: The most wrong tensors with pictures, ranks with pictures of their own, and example pairs.
MOST_TENSORS, MOST_RANKS, MOST_PAIRS = 6, 8, 12

#: The most elements of a tensor that has pictures: they take several copies in float64.
MOST_ELEMENTS = 2**26

#: The most rows and columns of a map: of the first wrong tensor, and of others.
FULL, SMALL = 128, 32

#: The most pieces of a dimension that a rank holds for which borders are drawn.
_MOST_PIECES = 16

#: The kinds of tensors that belong to a parameter.
_OF_PARAMETERS = frozenset(
    {"param", "param_grad", "unclipped_grad", "main_grad", "master_param", "optimizer_state"}
    | {"update"}
)

_Matrix = npt.NDArray[np.float64]
_Indices = npt.NDArray[np.intp]


def pictures_of(rung: RungTraces, findings: Sequence[Finding]) -> tuple[Panel, ...]:
    """The panels with values of the first wrong tensors; those of the first are in full."""
    wrong: dict[TensorId, Finding] = {}
    for each in findings:
        if each.verdict == "fail" and each.where is not None:
            known = wrong.get(each.where)
            if known is None or (known.pattern is None and each.pattern is not None):
                wrong[each.where] = each  # keeps the tensor's place
    made: list[Panel] = []
    for id, finding in [*wrong.items()][:MOST_TENSORS]:
        made += _of_tensor(rung, id, finding, first=not made)
    return tuple(made)


def _of_tensor(rung: RungTraces, id: TensorId, finding: Finding, *, first: bool) -> list[Panel]:
    sides = _sides(rung, id)
    if sides is None:
        return []
    value, reference, parts = sides
    name, shown, held = label(id), "candidate", parts
    if finding.check == "replicas" and value.shape == reference.shape:
        value, held = _of_the_wrong(value, reference, parts, rung)
        shown += f": {name_ranks([part.rank for part in held][:32])}"
    if value.shape != reference.shape or not value.size:
        return _apart(name, parts, value, reference) if first else []
    if rung.numbers.exact:
        differs = (value != reference).astype(np.float64)
        grid = _Grid.of(differs, FULL if first else SMALL)
        borders = _borders(parts, rung, value.shape, grid)
        return [
            Maps(
                title=f"Elements that differ: {name}",
                maps=(grid.map("1 where exact numbers differ", differs, borders),),
                anchor=name,
                of=value.shape,
                places=grid.places,
            )
        ]
    with np.errstate(over="ignore", invalid="ignore"):
        difference = value - reference
    grid = _Grid.of(difference, FULL if first else SMALL)
    borders = _borders(held, rung, value.shape, grid)
    scale = _scale(reference) or _scale(value)
    panels: list[Panel] = [
        Maps(
            title=f"Values: {name}",
            maps=(
                grid.map(label(shown, 120), value, borders, scale),
                grid.map("reference", reference, (), scale),
                grid.map("difference", difference, borders),
            ),
            anchor=name,
            note=grid.note(value.shape),
            of=value.shape,
            places=grid.places,
        )
    ]
    if first:
        panels += _of_ranks(rung, name, parts, reference, finding)
        panels.append(_pairs(name, value, reference, difference, held, rung))
    return panels


def _sides(rung: RungTraces, id: TensorId) -> tuple[_Matrix, _Matrix, list[Part]] | None:
    """Candidate, reference, and the candidate's parts; None if values are not recorded."""
    candidate, reference = rung.candidate, rung.reference
    kept = id if id.kind != "update" else msgspec.structs.replace(id, kind="param")
    if not all(trace.holders(kept) and is_whole(trace, kept) for trace in (candidate, reference)):
        return None
    if math.prod(reference.holders(kept)[0][1].shape) > MOST_ELEMENTS:
        return None
    if id.kind == "update":
        ours, theirs = Values(candidate).update(kept), Values(reference).update(kept)
        parts = update_parts(candidate, kept)
    else:
        theirs = logical_tensor(reference, id).tensor
        shape = tuple(theirs.shape) if theirs is not None else None
        merged = logical_tensor(candidate, id, shape)
        ours, parts = merged.tensor, merged.parts
    if ours is None or theirs is None:
        return None
    return _numbers(ours), _numbers(theirs), parts


def _of_the_wrong(
    value: _Matrix, reference: _Matrix, parts: list[Part], rung: RungTraces
) -> tuple[_Matrix, list[Part]]:
    """The candidate by those replicas that differ most from the reference, and these parts.

    Merged parts have the values of the first replicas, which may be right.
    """
    most: dict[bytes, float] = {}
    kept: dict[bytes, Part] = {}
    found = value.copy()
    for part in parts:
        try:
            arrays = index_arrays(part.layout, part.coordinates, rung.candidate.sizes, value.shape)
        except LayoutError:
            return value, parts
        at, own = np.ix_(*arrays), _numbers(part.tensor)
        if own.shape != reference[at].shape:
            return value, parts
        place = b"".join(array.tobytes() for array in arrays)
        off = float(np.nan_to_num(np.abs(own - reference[at]), nan=np.inf).max(initial=0.0))
        if off > most.get(place, -1.0):
            most[place], kept[place] = off, part
            found[at] = own
    return found, [*kept.values()]


def _numbers(tensor: torch.Tensor) -> _Matrix:
    """The values as float64; of complex numbers the absolute values."""
    value = tensor.detach()
    value = value.abs() if value.is_complex() else value
    return np.asarray(value.to(torch.float64).numpy())


def _flat(value: _Matrix) -> _Matrix:
    """A tensor as a matrix: its last dimension across, all others down."""
    return value.reshape(-1, value.shape[-1]) if value.ndim else value.reshape(1, 1)


@dataclass(frozen=True, slots=True)
class _Grid:
    """Which element of a matrix each cell of a map shows: its flat index."""

    rows: int
    columns: int
    shape: tuple[int, int]
    index: _Indices

    @property
    def places(self) -> str:
        """The flat index of each cell as 32-bit integers in base64; "" if no cell is a block."""
        if (self.rows, self.columns) == self.shape:
            return ""
        return base64.b64encode(self.index.astype("<i4").tobytes()).decode()

    @classmethod
    def of(cls, difference: _Matrix, most: int) -> _Grid:
        """The grid of at most `most` cells a side that shows what differs most in each block."""
        matrix = np.abs(np.nan_to_num(_flat(difference), nan=np.inf, posinf=np.inf))
        high, wide = matrix.shape
        rows, columns = min(high, most), min(wide, most if high > 1 else FULL)
        tops, lefts = (
            np.linspace(0, n, k + 1).astype(int) for n, k in ((high, rows), (wide, columns))
        )
        index = np.empty((rows, columns), dtype=np.intp)
        if (rows, columns) == (high, wide):
            index[:] = np.arange(high * wide).reshape(high, wide)
            return cls(rows, columns, (high, wide), index)
        for row in range(rows):
            band = matrix[tops[row] : tops[row + 1]]
            for column in range(columns):
                block = band[:, lefts[column] : lefts[column + 1]]
                at = np.unravel_index(int(block.argmax()), block.shape)
                index[row, column] = (tops[row] + at[0]) * wide + lefts[column] + at[1]
        return cls(rows, columns, (high, wide), index)

    def map(
        self,
        name: str,
        value: _Matrix,
        borders: Sequence[Border] = (),
        scale: float = 0.0,
    ) -> Map:
        with np.errstate(over="ignore", invalid="ignore"):
            shown = _flat(value).reshape(-1)[self.index].astype("<f4")
        text = base64.b64encode(shown.tobytes()).decode()
        return Map(name, (self.rows, self.columns), text, tuple(borders), scale)

    def note(self, shape: Sequence[int]) -> str:
        """What a map shows of a tensor of this shape."""
        text = f"shape {list(shape)}"
        if len(shape) > 2:
            text += "; the last dimension is across, and the others are down"
        if (self.rows, self.columns) != self.shape:
            text += "; each cell is the element of its block that differs most"
        return text


def _scale(value: _Matrix) -> float:
    known = np.abs(value[np.isfinite(value)])
    most = float(known.max()) if known.size else 0.0
    return most if math.isfinite(most) else 0.0


def _borders(
    parts: Sequence[Part], rung: RungTraces, shape: Sequence[int], grid: _Grid
) -> list[Border]:
    """The rectangles that ranks hold, each with its ranks; none if a layout has too many pieces."""
    held: dict[tuple[int, int, int, int], list[int]] = {}
    for part in parts:
        try:
            arrays = index_arrays(part.layout, part.coordinates, rung.candidate.sizes, shape)
        except LayoutError:
            return []
        down = np.zeros(1, dtype=np.int64)
        for length, array in zip(shape[:-1], arrays[:-1], strict=True):
            down = (down[:, None] * length + array[None, :]).reshape(-1)
        across = arrays[-1] if arrays else np.zeros(1, dtype=np.int64)
        rows, columns = _runs(down), _runs(across)
        if len(rows) > _MOST_PIECES or len(columns) > _MOST_PIECES:
            return []
        for top, bottom in rows:
            for left, right in columns:
                held.setdefault((top, left, bottom, right), []).append(part.rank)
    high, wide = grid.rows / grid.shape[0], grid.columns / grid.shape[1]
    return [
        Border(t * high, le * wide, b * high, r * wide, label(name_ranks(ranks[:32]), 120))
        for (t, le, b, r), ranks in [*held.items()][:256]
    ]


def _runs(indices: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """The ranges of consecutive indices."""
    if not indices.size:
        return []
    cuts = np.flatnonzero(np.diff(indices) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(indices, cuts)[: _MOST_PIECES + 1]]


def _of_ranks(
    rung: RungTraces, name: str, parts: Sequence[Part], reference: _Matrix, finding: Finding
) -> list[Panel]:
    """What every rank holds, and the sum of it if the ranks hold partial sums."""
    if len(parts) < 2:
        return []
    pattern = finding.pattern
    summed = pattern is not None and pattern.name == "partial sum"
    values = {part.rank: _numbers(part.tensor) for part in parts[:MOST_RANKS]}
    scale = max(map(_scale, values.values()), default=0.0)
    maps = []
    for part in parts[:MOST_RANKS]:
        value, held = _placed(part, values[part.rank])
        said = f"rank {part.rank}{coordinates_text(part.coordinates, rung.candidate.sizes)}"
        said += f"{_equal(values, part.rank)}{f', {held}' if held else ''}"
        if value.size:
            grid = _Grid.of(value, SMALL)
            borders = _of_range(part, grid) if held else ()
            maps.append(grid.map(label(said, 200), value, borders, scale))
    note = _tied(parts, finding)
    if summed and pattern is not None:
        axes = pattern.axis.split(" and ")
        here = {k: v for k, v in parts[0].coordinates.items() if k not in axes}
        terms = [p for p in parts if here.items() <= {*p.coordinates.items()}]
        total = sum((_numbers(term.tensor) for term in terms), np.zeros(()))
        ranks = " + ".join(f"rank {term.rank}" for term in terms[:MOST_RANKS])
        own = _Grid.of(total, SMALL)
        maps.append(own.map(label(f"sum: {ranks}", 120), total, (), scale))
        if total.shape == reference.shape:
            maps.append(own.map("reference", reference, (), scale))
        note = f"{pattern.text}{f'; {note}' if note else ''}"
    return [
        Maps(title=f"What each rank holds: {name}", maps=tuple(maps[:24]), note=label(note, 2_000))
    ]


def _placed(part: Part, value: _Matrix) -> tuple[_Matrix, str]:
    """What a rank holds, and which elements: a range of a flattened tensor at its place in it.

    Elements that the rank does not hold are 0.
    """
    _, flat = split_flat(part.layout)
    elements = 0 if flat is None else math.prod(flat.shape)
    if flat is None or value.size != flat.length or flat.offset + flat.length > elements:
        return value, ""
    whole = np.zeros(elements)
    whole[flat.offset : flat.offset + flat.length] = value.reshape(-1)
    held = f"elements {flat.offset} to {flat.offset + flat.length - 1} of {elements}"
    return whole.reshape(flat.shape), held if flat.length else f"none of {elements} elements"


def _of_range(part: Part, grid: _Grid) -> list[Border]:
    """The rows of a map in which the range lies that a rank holds of a flattened tensor."""
    _, flat = split_flat(part.layout)
    high, wide = grid.shape
    if flat is None or not flat.length:
        return []
    begin, end = flat.offset, flat.offset + flat.length
    down, across = grid.rows / high, grid.columns / wide
    if high == 1:
        return [Border(0, begin * across, 1, end * across, "held by the rank")]
    bottom = -(-end // wide)
    top, bottom = math.floor(begin // wide * down), math.ceil(bottom * down)  # whole cells
    return [Border(top, 0, bottom, grid.columns, "held by the rank")]


def _tied(parts: Sequence[Part], finding: Finding) -> str:
    """A clause on a parameter that several pipeline stages hold; "" for any other tensor."""
    stages = sorted({part.coordinates.get("pp", 0) for part in parts})
    if len(stages) < 2 or finding.where is None or finding.where.kind not in _OF_PARAMETERS:
        return ""
    named = " and ".join(f"pp={stage}" for stage in stages[:8])
    return (
        f"the stages {named} each have a copy of this parameter, so its gradient must be summed "
        "over them"
    )


def coordinates_text(coordinates: Mapping[str, int], sizes: Mapping[str, int]) -> str:
    """Where a rank is on the axes of more than one rank: ` · tp=0 cp=1`."""
    named = [f"{axis}={coordinates[axis]}" for axis, size in sizes.items() if size > 1]
    return f" · {' '.join(named)}" if named else ""


def _equal(values: Mapping[int, _Matrix], rank: int) -> str:
    """A clause on the first rank that holds the same values as a later `rank`; else ""."""
    same = (n for n in values if np.array_equal(values[n], values[rank], equal_nan=True))
    first = next(same)
    return f", equal to rank {first}" if first != rank else ""


def _pairs(
    name: str,
    value: _Matrix,
    reference: _Matrix,
    difference: _Matrix,
    parts: Sequence[Part],
    rung: RungTraces,
) -> Table:
    """The elements that differ most: their values and the ranks that hold them."""
    size = np.abs(np.nan_to_num(difference, nan=np.inf, posinf=np.inf)).reshape(-1)
    order = np.argsort(-size, kind="stable")[:MOST_PAIRS]
    places = [tuple(int(i) for i in np.unravel_index(int(at), value.shape)) for at in order]
    rows = tuple(
        (
            str(list(place)),
            *(_exact(each[place]) for each in (value, reference, difference)),
            _holders(parts, rung, value.shape, place),
        )
        for place in places
    )
    columns = ("index", "candidate", "reference", "difference", "held by")
    return Table(title=f"Elements that differ most: {name}", columns=columns, rows=rows)


def _exact(value: np.float64) -> str:
    return f"{float(value):.9g}"


def _holders(
    parts: Sequence[Part], rung: RungTraces, shape: Sequence[int], place: Sequence[int]
) -> str:
    ranks = []
    for part in parts:
        try:
            arrays = index_arrays(part.layout, part.coordinates, rung.candidate.sizes, shape)
        except LayoutError:
            continue
        if all(at in array for at, array in zip(place, arrays, strict=True)):
            ranks.append(part.rank)
    return label(name_ranks(ranks[:16])) if ranks else ""


def _apart(name: str, parts: Sequence[Part], value: _Matrix, reference: _Matrix) -> list[Panel]:
    """The shapes that ranks hold of a tensor whose shape is not the reference's."""
    rows = [("candidate", str(list(value.shape))), ("reference", str(list(reference.shape)))]
    rows += [(f"rank {p.rank}", str(list(p.tensor.shape))) for p in parts[:MOST_RANKS]]
    return [Table(title=f"Shapes: {name}", rows=tuple((a, label(b)) for a, b in rows))]
