"""Checks the fields of an annotation's entry; messages name the entry and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_trainsafe.annotations.entries import AnnotationError, Decision, Placing
from pytest_trainsafe.core.usage import excerpt, shown

#: Larger than any tensor of torch: dimensions, and elements in one dimension.
MAX_DIMENSIONS, LARGEST_BLOCK = 64, 2**40
#: A longer key is not treated as a misspelling of a known one.
_LONGEST_KEY = 100

LOSS_AXES = ("tp", "cp", "dp")
LOCAL_AXES = ("tp", "sp", "cp", "dp", "pp", "vpp", "ep")
GRADIENT_AXES = ("tp", "pp")
#: The axes that a function of slices may depend on.
PLACED_AXES = ("tp", "cp", "dp", "pp")


def loss_axes(fields: Mapping[str, Any], key: str, origin: str, where: str) -> tuple[str, ...]:
    """The axes in a list, without duplicates."""
    axes = fields.get(key, [])
    if not isinstance(axes, list) or not all_of(axes, LOSS_AXES):
        raise AnnotationError(
            f"{origin}: {quoted(where)} is {shown(axes)}; it must be a list of "
            f"{', '.join(LOSS_AXES)}"
        )
    return tuple(dict.fromkeys(axes))


def all_of(values: Iterable[Any], allowed: tuple[str, ...]) -> bool:
    return all(isinstance(value, str) and value in allowed for value in values)


def local_axes(fields: Mapping[str, Any], origin: str, where: str) -> tuple[str, ...]:
    """The axes of the field `local`; () without it."""
    value = fields.get("local")
    if value is None:
        return ()
    meaning = ", as in [cp, ep]: the axes over which the output has no logical counterpart"
    return _axes("local", value, LOCAL_AXES, meaning, f"{origin}: {quoted(where)}")


def _axes(
    key: str,
    value: Any,
    allowed: tuple[str, ...],
    meaning: str,
    entry: str,
    *,
    needed: bool = False,
) -> tuple[str, ...]:
    """The axes in a list, without duplicates; with `needed` at least one.

    `meaning` ends the message of the AnnotationError for anything else.
    """
    listed = isinstance(value, list | tuple) and all_of(value, allowed)
    if not listed or (needed and not value):
        raise AnnotationError(
            f"{entry} has `{key}: {shown(value)}`; {key} must be a list of "
            f"{', '.join(allowed)}{meaning}"
        )
    return tuple(dict.fromkeys(value))


def permutations(
    fields: Mapping[str, Any], origin: str, where: str
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    found = []
    for axis, order in mapping(fields.get("permuted"), origin, f"{where}: permuted").items():
        dims = order if isinstance(order, list | tuple) else ()
        valid = len(dims) <= MAX_DIMENSIONS and all(map(is_integer, dims))
        if (
            axis not in LOCAL_AXES
            or not valid
            or sorted(dims) != list(range(len(dims)))
            or list(dims) == sorted(dims)
        ):
            raise AnnotationError(
                f"{origin}: {quoted(where)} has `permuted: {{{excerpt(axis)}: {shown(order)}}}`; "
                f"`permuted` maps one of {', '.join(LOCAL_AXES)} to an order of dimensions for "
                "torch.permute, which restores the logical tensor. For example, {sp: [1, 0, 2]} "
                "exchanges the first two of three dimensions at Points with sp on"
            )
        found.append((axis, tuple(dims)))
    return tuple(found)


def decision_of(fields: Mapping[str, Any], origin: str, where: str) -> Decision:
    value = fields.get("decision", False)
    if isinstance(value, bool):
        return "output" if value else ""
    if isinstance(value, str) and value == "topk":
        return "topk"
    raise AnnotationError(
        f"{origin}: {quoted(where)} has `decision: {shown(value)}`; decision must be true "
        "(the module returns the indices that it chose), topk (the module calls torch.topk or "
        "argmax inside its forward) or false"
    )


def gradient_partial(fields: Mapping[str, Any], origin: str, where: str) -> tuple[str, ...]:
    """The axes of the field `gradient_partial`; () without it."""
    value = fields.get("gradient_partial", [])
    meaning = (
        ", as in [tp]: the axes whose ranks each compute a term of the gradient (cp is always one "
        "of them and is not listed)"
    )
    return _axes("gradient_partial", value, GRADIENT_AXES, meaning, f"{origin}: {quoted(where)}")


def placing(
    fields: Mapping[str, Any], origin: str, where: str
) -> tuple[Placing | None, tuple[str, ...]]:
    """The function of an entry with `slices`, and the axes that it depends on."""
    function = fields.get("slices")
    if function is None:
        if "axes" in fields:
            raise AnnotationError(
                f"{origin}: {quoted(where)} has `axes` but no `slices`; `axes` names the mesh axes "
                "that the function in `slices` depends on"
            )
        return None, ()
    if not callable(function):
        raise AnnotationError(
            f"{origin}: {quoted(where)} has `slices: {shown(function)}`; slices must be a function "
            "(coordinates, sizes, shape) that returns the logical shape and the slices of each "
            "dimension. A file cannot hold one: pass the annotations as a dictionary"
        )
    meaning = ": the axes that the function in `slices` depends on"
    given, entry = fields.get("axes", ["tp"]), f"{origin}: {quoted(where)}"
    axes = _axes("axes", given, PLACED_AXES, meaning, entry, needed=True)
    others = [key for key in fields if key.endswith("_dim") and fields[key] is not None]
    if others:
        raise AnnotationError(
            f"{origin}: {quoted(where)} has `slices` and {' and '.join(others)}; remove one of "
            "them: the function in `slices` gives the rows of every dimension"
        )
    return function, axes


def size(fields: Mapping[str, Any], key: str, origin: str, where: str) -> int | None:
    value = fields.get(key)
    if value is None or (is_integer(value) and 1 <= value <= LARGEST_BLOCK):
        return value
    raise AnnotationError(
        f"{origin}: {quoted(where)} has `{key}: {shown(value)}`; {key} must be a number of "
        "ranks, 1 or more"
    )


def mapping(value: Any, origin: str, where: str) -> Mapping[str, Any]:
    """A mapping with text keys; {} for an empty section such as `parameters:`."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise AnnotationError(f"{origin}: {excerpt(where)} is {shown(value)}; it must be a mapping")
    for key in value:
        if not isinstance(key, str):
            raise AnnotationError(
                f"{origin}: {excerpt(where)} has the key {shown(key)}, which is not text; put "
                "it in quotes"
            )
    return value


def quoted(where: str) -> str:
    """The location of an entry, for a message: `parameters: fc.weight`."""
    return f"`{excerpt(where)}`"


def check_keys(fields: Iterable[str], allowed: tuple[str, ...], origin: str, where: str) -> None:
    for key in fields:
        if key not in allowed:
            raise AnnotationError(
                f"{origin}: {quoted(where)} has the unknown key {shown(key)}; "
                f"allowed are {', '.join(allowed)}{nearest(key, allowed)}"
            )


def nearest(key: str, allowed: tuple[str, ...]) -> str:
    if len(key) > _LONGEST_KEY:
        return ""
    import difflib  # only needed for an error

    near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.7)
    return f". Did you mean {near[0]}?" if near else ""


def dimension(fields: Mapping[str, Any], key: str, origin: str, where: str) -> int | None:
    value = fields.get(key)
    if value is None or (is_integer(value) and abs(value) <= MAX_DIMENSIONS):
        return value
    raise AnnotationError(
        f"{origin}: {quoted(where)} has `{key}: {shown(value)}`; {key} must be a dimension, such "
        "as 0, 1, or -1 for the last"
    )


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def flag(fields: Mapping[str, Any], key: str, origin: str, where: str) -> bool:
    value = fields.get(key, False)
    if isinstance(value, bool):
        return value
    raise AnnotationError(
        f"{origin}: {quoted(where)} has `{key}: {shown(value)}`; {key} must be true or false"
    )


def blocks_of(fields: Mapping[str, Any], origin: str, where: str) -> tuple[int, ...]:
    value = fields.get("blocks")
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(
        is_integer(size) and 0 < size <= LARGEST_BLOCK for size in value
    ):
        raise AnnotationError(
            f"{origin}: {quoted(where)} has `blocks: {shown(value)}`; blocks must be a list of "
            "the sizes of the blocks that are fused in the logical tensor, as in [64, 64, 64]"
        )
    if value and fields.get("tp_dim") is None:
        raise AnnotationError(
            f"{origin}: {quoted(where)} has `blocks` but no tp_dim; add the tp_dim that splits "
            "the blocks"
        )
    return tuple(value)
