"""Recognises rows in wrong positions: shifted, permuted, copied over others, or one for several."""

from __future__ import annotations

import numpy as np
import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import LEFT_OVER, WrongTensor

#: The patterns of right values at wrong places; the first is that of `shard.py`.
MISPLACED = frozenset({"another shard", "permuted rows", "misplaced rows", "shifted"})

#: The largest number of rows that are matched; it limits the matrix of their distances.
MAX_ROWS = 2048

#: How many elements of a row are used to find its match; the match is verified in full.
SAMPLED = 64

#: Moved rows with fewer elements than this in total match by chance.
FEWEST = 8

#: The largest shift that is tried.
FARTHEST = 4

#: Fewer wrong rows than this, or shorter ones, are equal by chance.
FEWEST_ROWS, FEWEST_COLUMNS = 3, 4

#: Kinds of tensors whose rows are tokens or samples.
_OF_TOKENS = frozenset({"input", "activation", "activation_grad"})


def shifted(wrong: WrongTensor) -> Pattern | None:
    """Matches if row i along one dimension equals the reference's row i - k, for some shift k.

    The rows at the edge, which have no counterpart, may have any values.
    """
    for dim, length in enumerate(wrong.reference.shape):
        for size in range(1, min(FARTHEST, length - 2) + 1):
            for by in (size, -size):
                if _shifts(wrong, dim, by):
                    rows = "one row" if size == 1 else f"{size} rows"
                    where = "forward" if by > 0 else "back"
                    text = (
                        f"the rows of dimension {dim} are shifted {where} by {rows}: row "
                        f"{max(by, 0)} holds the values of the reference's row {max(-by, 0)}"
                    )
                    cause = f"an index or an offset along dimension {dim} is off by {size}"
                    short = f"shifted {where} by {rows} along dimension {dim}"
                    return Pattern("shifted", text, cause=cause, short=short)
    return None


def _shifts(wrong: WrongTensor, dim: int, by: int) -> bool:
    kept = wrong.reference.shape[dim] - abs(by)
    here, there = max(by, 0), max(-by, 0)
    value = wrong.value.narrow(dim, here, kept)
    expected = wrong.reference.narrow(dim, there, kept)
    if value.numel() < FEWEST or kept < 2:
        return False
    error = wrong.norm(wrong.minus(value, wrong.reference.narrow(dim, here, kept)))
    left = wrong.norm(wrong.minus(value, expected))
    # If the rows are all alike, a shift changes nothing and explains nothing.
    return (
        error >= wrong.error / 4
        and error > wrong.allowed
        and wrong.within(left, max(min(3 * wrong.allowed, error / 4), LEFT_OVER * error))
    )


def permuted(wrong: WrongTensor) -> Pattern | None:
    """Matches if the wrong rows along one dimension are other rows of the reference."""
    for dim in range(wrong.reference.ndim):
        found = _sources(wrong, dim)
        if found is None:
            continue
        rows, sources = found
        arranged = wrong.reference.clone()
        arranged.index_copy_(dim, rows, wrong.reference.index_select(dim, sources))
        if not wrong.explains(wrong.value, arranged):
            continue
        length = wrong.reference.shape[dim]
        first, source = int(rows[0]), int(sources[0])
        what = f"{len(rows)} of the {length} indices along dimension {dim}"
        where = f"index {first} holds the values of the reference's index {source}"
        if sorted(sources.tolist()) == rows.tolist():
            cause = f"parts are divided, gathered or reordered wrongly along dimension {dim}"
            short = f"{what} are in another order"
            return Pattern("permuted rows", f"{short}: {where}", cause=cause, short=short)
        cause = f"rows are gathered or copied from the wrong places along dimension {dim}"
        short = f"{what} are copies of others"
        return Pattern("misplaced rows", f"{short}: {where}", cause=cause, short=short)
    return None


def same_row(wrong: WrongTensor) -> Pattern | None:
    """Matches if all wrong rows hold the values of one row, and the reference's rows there differ.

    A row is one index of all dimensions but the last.
    """
    shape = wrong.value.shape
    if wrong.kind not in _OF_TOKENS or len(shape) < 2 or shape[-1] < FEWEST_COLUMNS:
        return None
    value, reference, errors = (
        each.reshape(-1, shape[-1]) for each in (wrong.value, wrong.reference, wrong.difference)
    )
    sizes = (~wrong.numbers.is_zero(errors)).double() if wrong.numbers.exact else errors.abs()
    sizes = sizes.square().sum(dim=1).sqrt()
    limit = 0.0 if wrong.numbers.exact else 2 * wrong.allowed / max(len(sizes), 1) ** 0.5
    rows = (sizes > limit).nonzero().flatten()
    if not FEWEST_ROWS <= len(rows) < len(sizes):
        return None
    first = value[rows[:1]].expand(len(rows), -1)
    if not wrong.settles(wrong.norm(wrong.minus(value[rows], first))):
        return None
    due = reference[rows]
    if wrong.settles(wrong.norm(wrong.minus(due, due[:1].expand(len(rows), -1)))):
        return None  # the reference's rows are equal there too
    place = [int(at) for at in np.unravel_index(int(rows[0]), shape[:-1])]
    text = f"the {len(rows)} wrong rows of {len(sizes)} all hold the same values"
    return Pattern(
        "same row",
        f"{text}, as at index {place}; the reference's rows differ from each other",
        cause="an index is masked or clamped, so that one row is read for all of these",
        short=text,
    )


def _sources(wrong: WrongTensor, dim: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The indices of the wrong rows along a dimension and of the reference's rows closest to them.

    None if rows cannot be matched, or if a wrong row is closest to its own row.
    """
    length = wrong.reference.shape[dim]
    reference, value = _rows(wrong.reference, dim), _rows(wrong.value, dim)
    width = reference.shape[1]
    errors = wrong.row_errors(dim)
    # A row with no more error than its share of rounding keeps its position.
    limit = max(2 * wrong.allowed / max(length, 1) ** 0.5, 1e-3 * wrong.error / length**0.5)
    rows = (errors > (0.0 if wrong.numbers.exact else limit)).nonzero().flatten()
    if len(rows) * width < FEWEST or max(len(rows), length) > MAX_ROWS:
        return None
    columns = torch.linspace(0, width - 1, min(width, SAMPLED)).round().long()
    distances = torch.cdist(value[rows][:, columns], reference[:, columns])
    sources = distances.argmin(dim=1)
    if bool((sources == rows).any()):
        return None
    if width < FEWEST and sorted(sources.tolist()) != rows.tolist():
        return None  # among many short rows, one is close by chance
    return rows, sources


def _rows(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real.movedim(dim, 0).reshape(tensor.shape[dim], -1)
