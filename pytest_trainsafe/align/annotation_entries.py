"""What an annotation file may say, as types, and the errors for what it may not.

Called by `align/annotations.py`, which turns entries into Layouts.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


class AnnotationError(ValueError):
    """An annotation is wrong; the message names the file, the entry, and what is allowed."""


@dataclass(frozen=True, slots=True)
class ParameterEntry:
    """How parameters are cut over tp.  `blocks` are the logical sizes of fused blocks.

    `expert_parallel` parameters are held by some of the dp and cp ranks only, at ep > 1.
    """

    tp_dim: int | None = None
    blocks: tuple[int, ...] = ()
    sequence_parallel: bool = False
    expert_parallel: bool = False


@dataclass(frozen=True, slots=True)
class OutputEntry:
    """How a module's output is cut, or that each rank holds a term of it.

    At Points where an axis of `local` is more than 1, it has no logical counterpart.
    A `decision` is the indices of what was chosen by scores.
    """

    tp_dim: int | None = None
    sp_dim: int | None = None
    cp_dim: int | None = None
    tp_partial: bool = False
    cp_partial: bool = False
    blocks: tuple[int, ...] = ()
    local: tuple[str, ...] = ()
    decision: bool = False


@dataclass(frozen=True, slots=True)
class LossEntry:
    """The axes whose ranks hold terms of the loss (`partial`) or of its mean (`mean`)."""

    partial: tuple[str, ...] = ()
    mean: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entries:
    """A whole annotation file, checked.  The order of patterns is the file's.

    `mean_gradients` are the axes over which gradients are yet to be averaged.
    """

    cp_order: Literal["zigzag", "contiguous"] | None = None
    loss: LossEntry | None = None
    mean_gradients: tuple[str, ...] = ()
    parameters: tuple[tuple[str, ParameterEntry], ...] = ()
    modules: tuple[tuple[str, dict[str, OutputEntry]], ...] = ()


LOSS_AXES = ("tp", "cp", "dp")
LOCAL_AXES = ("tp", "sp", "cp", "dp", "ep")


def parse(data: Any, origin: str) -> Entries:
    """Check what `yaml.safe_load` made of an annotation file; `origin` names it in errors."""
    top = _mapping(data if data is not None else {}, origin, "the file")
    _keys(top, ("cp_order", "loss", "gradients", "parameters", "modules"), origin, "the file")
    order = top.get("cp_order")
    if order not in (None, "zigzag", "contiguous"):
        raise AnnotationError(f"{origin}: cp_order is {order!r}; it is zigzag or contiguous")
    entries = Entries(
        order,
        _loss(top["loss"], origin) if "loss" in top else None,
        _gradients(top.get("gradients"), origin),
        tuple(
            (pattern, _parameter(value, origin, f"parameters: {pattern}"))
            for pattern, value in _section(top, "parameters", origin)
        ),
        tuple(
            (pattern, _module(value, origin, f"modules: {pattern}"))
            for pattern, value in _section(top, "modules", origin)
        ),
    )
    for pattern, outputs in entries.modules:
        if order is None and any(entry.cp_dim is not None for entry in outputs.values()):
            raise AnnotationError(
                f"{origin}: `modules: {pattern}` has a cp_dim, so the file must say how cp cuts "
                "a sequence: add `cp_order: zigzag` or `cp_order: contiguous`"
            )
    return entries


def _section(top: Mapping[str, Any], name: str, origin: str) -> Iterable[tuple[str, Any]]:
    return _mapping(top.get(name) or {}, origin, name).items()


def _loss(value: Any, origin: str) -> LossEntry:
    fields = _mapping(value or {}, origin, "loss")
    _keys(fields, ("partial", "mean"), origin, "loss")
    for key, axes in fields.items():
        _axes(axes, origin, f"loss: {key}")
    entry = LossEntry(tuple(fields.get("partial", ())), tuple(fields.get("mean", ())))
    if both := set(entry.partial) & set(entry.mean):
        raise AnnotationError(f"{origin}: `loss` names {both.pop()} under partial and under mean")
    return entry


def _gradients(value: Any, origin: str) -> tuple[str, ...]:
    fields = _mapping(value or {}, origin, "gradients")
    _keys(fields, ("mean",), origin, "gradients")
    axes = fields.get("mean", [])
    _axes(axes, origin, "gradients: mean")
    return tuple(dict.fromkeys(axes))


def _axes(axes: Any, origin: str, where: str) -> None:
    if not isinstance(axes, list) or not set(axes) <= set(LOSS_AXES):
        raise AnnotationError(
            f"{origin}: `{where}` is {axes!r}; it is a list of {', '.join(LOSS_AXES)}"
        )


def _parameter(value: Any, origin: str, where: str) -> ParameterEntry:
    fields = _mapping(value or {}, origin, where)
    allowed = ("tp_dim", "blocks", "sequence_parallel", "expert_parallel")
    _keys(fields, allowed, origin, where)
    entry = ParameterEntry(
        _dim(fields, "tp_dim", origin, where),
        _blocks(fields, origin, where),
        _flag(fields, "sequence_parallel", origin, where),
        _flag(fields, "expert_parallel", origin, where),
    )
    if entry.sequence_parallel and entry.tp_dim is not None:
        raise AnnotationError(
            f"{origin}: `{where}` has a tp_dim and sequence_parallel; the latter is for "
            "parameters that every tp rank holds whole"
        )
    return entry


def _module(value: Any, origin: str, where: str) -> dict[str, OutputEntry]:
    outputs = {}
    for name, fields in _mapping(value or {}, origin, where).items():
        if name.split(".")[0] not in ("output", "output_grad"):
            raise AnnotationError(
                f"{origin}: `{where}` has the key {name!r}; allowed are output and output_grad, "
                f"or one of several: output.0, output.logits{_nearest(name, ('output',))}"
            )
        outputs[name] = _output(fields, origin, f"{where}: {name}")
    return outputs


def _output(value: Any, origin: str, where: str) -> OutputEntry:
    fields = _mapping(value or {}, origin, where)
    allowed = (
        *("tp_dim", "sp_dim", "cp_dim", "tp_partial", "cp_partial"),
        *("blocks", "local", "decision"),
    )
    _keys(fields, allowed, origin, where)
    entry = OutputEntry(
        _dim(fields, "tp_dim", origin, where),
        _dim(fields, "sp_dim", origin, where),
        _dim(fields, "cp_dim", origin, where),
        _flag(fields, "tp_partial", origin, where),
        _flag(fields, "cp_partial", origin, where),
        _blocks(fields, origin, where),
        _local(fields, origin, where),
        _flag(fields, "decision", origin, where),
    )
    over_tp = [
        key
        for key, used in (
            ("tp_dim", entry.tp_dim is not None),
            ("sp_dim", entry.sp_dim is not None),
            ("tp_partial", entry.tp_partial),
        )
        if used
    ]
    if len(over_tp) > 1:
        raise AnnotationError(f"{origin}: `{where}` has {' and '.join(over_tp)}; both act over tp")
    if entry.cp_dim is not None and entry.cp_partial:
        raise AnnotationError(f"{origin}: `{where}` has cp_dim and cp_partial; both act over cp")
    return entry


def _local(fields: Mapping[str, Any], origin: str, where: str) -> tuple[str, ...]:
    value = fields.get("local") or ()
    if not isinstance(value, list | tuple) or not set(value) <= set(LOCAL_AXES):
        raise AnnotationError(
            f"{origin}: `{where}` has local: {value!r}; it is the list of the axes over which the "
            f"output has no logical counterpart, of {', '.join(LOCAL_AXES)}, as in [cp, ep]"
        )
    return tuple(value)


def _mapping(value: Any, origin: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise AnnotationError(f"{origin}: {where} is {value!r}; it must be a mapping")
    for key in value:
        if not isinstance(key, str):
            raise AnnotationError(f"{origin}: {where} has the key {key!r}; put it in quotes")
    return value


def _keys(fields: Iterable[str], allowed: tuple[str, ...], origin: str, where: str) -> None:
    for key in fields:
        if key not in allowed:
            raise AnnotationError(
                f"{origin}: `{where}` has the unknown key {key!r}; "
                f"allowed are {', '.join(allowed)}{_nearest(key, allowed)}"
            )


def _nearest(key: str, allowed: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.7)
    return f". Did you mean {near[0]}?" if near else ""


def _dim(fields: Mapping[str, Any], key: str, origin: str, where: str) -> int | None:
    value = fields.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise AnnotationError(
        f"{origin}: `{where}` has {key}: {value!r}; it is a dimension: 0, 1, or -1 for the last"
    )


def _flag(fields: Mapping[str, Any], key: str, origin: str, where: str) -> bool:
    value = fields.get(key, False)
    if isinstance(value, bool):
        return value
    raise AnnotationError(f"{origin}: `{where}` has {key}: {value!r}; it is true or false")


def _blocks(fields: Mapping[str, Any], origin: str, where: str) -> tuple[int, ...]:
    value = fields.get("blocks") or ()
    if not isinstance(value, list | tuple) or not all(
        isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in value
    ):
        raise AnnotationError(
            f"{origin}: `{where}` has blocks: {value!r}; it is the list of the sizes of the fused "
            "blocks in the logical tensor, as in [64, 64, 64]"
        )
    if value and fields.get("tp_dim") is None:
        raise AnnotationError(f"{origin}: `{where}` has blocks and no tp_dim that cuts them")
    return tuple(value)
