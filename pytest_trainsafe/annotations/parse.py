"""Checks the data of an annotation file and builds its entries; reports invalid input.

The checks are written by hand because messages name the pattern, what is allowed there and the
nearest known key, and because most checks concern several fields.  `msgspec.convert`, which is used
for data from ranks and traces, reports only the place and the type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_trainsafe.annotations.entries import (
    CP_ORDERS,
    AnnotationError,
    CpOrder,
    Decision,
    Entries,
    LossEntry,
    OutputEntry,
    ParameterEntry,
    is_glob,
)
from pytest_trainsafe.core.usage import excerpt, shown

#: Maximum length of a pattern, and maximum number of patterns with a wildcard in one section:
#: every name is matched against each of them.
LONGEST_PATTERN, MAX_GLOBS = 1000, 1000
#: Larger than any tensor of torch: dimensions, and elements in one dimension.
MAX_DIMENSIONS, LARGEST_BLOCK = 64, 2**40
#: A longer key is not treated as a misspelling of a known one.
_LONGEST_KEY = 100

LOSS_AXES = ("tp", "cp", "dp")
LOCAL_AXES = ("tp", "sp", "cp", "dp", "pp", "vpp", "ep")
GRADIENT_AXES = ("tp", "pp")
OUTPUT_KEYS = (
    *("tp_dim", "sp_dim", "cp_dim", "tp_partial", "sp_partial", "cp_partial"),
    *("blocks", "local", "permuted", "decision", "dp_dim"),
)
#: A buffer has no partial sums, and a decision is never stored in one.
BUFFER_KEYS = ("tp_dim", "sp_dim", "cp_dim", "blocks", "local", "optional")

_PATTERNS = ("parameters", "modules", "buffers")
_SECTIONS = ("cp_order", "loss", "gradients", *_PATTERNS)


def parse(data: Any, origin: str, model: str = "") -> Entries:
    """Checks the data of an annotation file, or a mapping of its form; `origin` names it in errors.

    For a file with several models, the result has the common entries and then those of `model`,
    which take precedence.  Raises AnnotationError for invalid data of any kind.
    """
    top = _mapping(data, origin, "the file")
    _keys(top, (*_SECTIONS, "models"), origin, "the file")
    common = {key: value for key, value in top.items() if key != "models"}
    models = _mapping(top.get("models"), origin, "models")
    found = {}
    for name, own in models.items():
        where = f"models: {name}"
        _keys(_mapping(own, origin, where), _SECTIONS, origin, where)
        found[name] = _entries(_joined(common, own or {}, origin), f"{origin}#{name}")
    if not model and not models:
        return _entries(common, origin)
    known = ", ".join(models) or "none"
    if model in found:
        return found[model]
    if model:
        raise AnnotationError(
            f"{origin} has no model {shown(model)} under `models`; it has {excerpt(known)}"
            f"{_nearest(model, tuple(models))}"
        )
    raise AnnotationError(
        f"{origin} has annotations for the models {excerpt(known)}; select one of them by adding # "
        "and its name to the file's name, as in annotations="
        f"{excerpt(f'layouts.yaml#{next(iter(models))}')!r}"
    )


def _joined(common: Mapping[str, Any], own: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """The common sections with those of one model added; the model's entries come last."""
    joined: dict[str, Any] = {**common, **own}
    for section in _PATTERNS:
        first, last = (_mapping(each.get(section), origin, section) for each in (common, own))
        joined[section] = {**{k: v for k, v in first.items() if k not in last}, **last}
    return joined


def _entries(top: Mapping[str, Any], origin: str) -> Entries:
    order = _cp_order(top.get("cp_order"), origin)
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
        tuple(
            (pattern, _output(value, origin, f"buffers: {pattern}", BUFFER_KEYS))
            for pattern, value in _section(top, "buffers", origin)
        ),
        frozenset(
            f"{section}: {pattern}"
            for section in _PATTERNS
            for pattern, value in _section(top, section, origin)
            if value and _flag(value, "optional", origin, f"{section}: {pattern}")
        ),
    )
    cut = [(f"modules: {pattern}", [*outputs.values()]) for pattern, outputs in entries.modules]
    cut += [(f"buffers: {pattern}", [entry]) for pattern, entry in entries.buffers]
    for where, outputs in cut:
        if order is None and any(entry.cp_dim is not None for entry in outputs):
            raise AnnotationError(
                f"{origin}: {_quoted(where)} has a cp_dim, so the file must declare "
                "how cp splits a sequence; add `cp_order: zigzag`, `contiguous` or `striped`"
            )
    return entries


def _cp_order(value: Any, origin: str) -> CpOrder | None:
    if value is None:
        return None
    for order in CP_ORDERS:
        if isinstance(value, str) and value == order:
            return order
    known = ", ".join(CP_ORDERS[:-1])
    raise AnnotationError(
        f"{origin}: cp_order is {shown(value)}; it must be {known} or {CP_ORDERS[-1]}"
    )


def _section(top: Mapping[str, Any], name: str, origin: str) -> Iterable[tuple[str, Any]]:
    entries = _mapping(top.get(name), origin, name)
    wild = 0
    for pattern in entries:
        wild += is_glob(pattern)
        if len(pattern) > LONGEST_PATTERN:
            raise AnnotationError(
                f"{origin}: {name} has the pattern {shown(pattern)}; a pattern has at most "
                f"{LONGEST_PATTERN} characters"
            )
    if wild > MAX_GLOBS:
        raise AnnotationError(
            f"{origin}: {name} has {wild} patterns with *, ? or [; at most {MAX_GLOBS} are "
            "allowed, and any number of plain names"
        )
    return entries.items()


def _loss(value: Any, origin: str) -> LossEntry:
    fields = _mapping(value, origin, "loss")
    _keys(fields, ("partial", "mean"), origin, "loss")
    partial, mean = (_axes(fields, key, origin, f"loss: {key}") for key in ("partial", "mean"))
    entry = LossEntry(partial, mean)
    if both := set(entry.partial) & set(entry.mean):
        raise AnnotationError(
            f"{origin}: `loss` lists {both.pop()} under both `partial` and `mean`; remove it from "
            "one of them"
        )
    return entry


def _gradients(value: Any, origin: str) -> tuple[str, ...] | None:
    fields = _mapping(value, origin, "gradients")
    _keys(fields, ("mean",), origin, "gradients")
    if "mean" not in fields:
        return None
    return _axes(fields, "mean", origin, "gradients: mean")


def _axes(fields: Mapping[str, Any], key: str, origin: str, where: str) -> tuple[str, ...]:
    """The axes in a list, without duplicates."""
    axes = fields.get(key, [])
    if not isinstance(axes, list) or not _all_of(axes, LOSS_AXES):
        raise AnnotationError(
            f"{origin}: {_quoted(where)} is {shown(axes)}; it must be a list of "
            f"{', '.join(LOSS_AXES)}"
        )
    return tuple(dict.fromkeys(axes))


def _all_of(values: Iterable[Any], allowed: tuple[str, ...]) -> bool:
    return all(isinstance(value, str) and value in allowed for value in values)


def _parameter(value: Any, origin: str, where: str) -> ParameterEntry:
    fields = _mapping(value, origin, where)
    allowed = (
        *("tp_dim", "blocks", "sequence_parallel", "gradient_partial"),
        *("expert_parallel", "expert_tp_size", "optional"),
    )
    _keys(fields, allowed, origin, where)
    entry = ParameterEntry(
        _dim(fields, "tp_dim", origin, where),
        _blocks(fields, origin, where),
        _flag(fields, "sequence_parallel", origin, where),
        _flag(fields, "expert_parallel", origin, where),
        _size(fields, "expert_tp_size", origin, where),
        _gradient_partial(fields, origin, where),
    )
    if "tp" in entry.gradient_partial and entry.tp_dim is not None:
        raise AnnotationError(
            f"{origin}: {_quoted(where)} has a tp_dim and gradient_partial over tp; remove one of "
            "them: gradient_partial over tp is for parameters that every tp rank holds whole"
        )
    if entry.sequence_parallel and entry.tp_dim is not None:
        raise AnnotationError(
            f"{origin}: {_quoted(where)} has a tp_dim and sequence_parallel; remove one of them: "
            "sequence_parallel is for parameters that every tp rank holds whole"
        )
    return entry


def _module(value: Any, origin: str, where: str) -> dict[str, OutputEntry]:
    outputs = {}
    for name, fields in _mapping(value, origin, where).items():
        if name == "optional":
            continue
        if name.split(".", 1)[0] not in ("output", "output_grad"):
            raise AnnotationError(
                f"{origin}: {_quoted(where)} has the key {shown(name)}; allowed are output "
                "and output_grad, or a part of them such as output.0 or output.logits, and optional"
                f"{_nearest(name, ('output', 'optional'))}"
            )
        entry = outputs[name] = _output(fields, origin, f"{where}: {name}")
        if entry.decision and name != "output":
            raise AnnotationError(
                f"{origin}: {_quoted(f'{where}: {name}')} has `decision`, which describes the "
                "whole module and is allowed only under `output`"
            )
        if entry.permuted and name.startswith("output_grad"):
            raise AnnotationError(
                f"{origin}: {_quoted(f'{where}: {name}')} has `permuted`, which is allowed only "
                "under `output`: the order of an output's dimensions is also that of its gradient"
            )
    return outputs


def _output(
    value: Any, origin: str, where: str, allowed: tuple[str, ...] = OUTPUT_KEYS
) -> OutputEntry:
    fields = _mapping(value, origin, where)
    _keys(fields, allowed, origin, where)
    entry = OutputEntry(
        _dim(fields, "tp_dim", origin, where),
        _dim(fields, "sp_dim", origin, where),
        _dim(fields, "cp_dim", origin, where),
        _flag(fields, "tp_partial", origin, where),
        _flag(fields, "sp_partial", origin, where),
        _flag(fields, "cp_partial", origin, where),
        _blocks(fields, origin, where),
        _local(fields, origin, where),
        _permuted(fields, origin, where),
        _decision(fields, origin, where),
        dp_dim=_dim(fields, "dp_dim", origin, where),
    )
    over_tp = [
        key
        for key, used in (
            ("tp_dim", entry.tp_dim is not None),
            ("sp_dim", entry.sp_dim is not None),
            ("tp_partial", entry.tp_partial),
            ("sp_partial", entry.sp_partial),
        )
        if used
    ]
    if len(over_tp) > 1:
        raise AnnotationError(
            f"{origin}: {_quoted(where)} has {' and '.join(over_tp)}, which all act over tp; keep "
            "one of them"
        )
    if entry.cp_dim is not None and entry.cp_partial:
        raise AnnotationError(
            f"{origin}: {_quoted(where)} has cp_dim and cp_partial, which both act over cp; keep "
            "one of them"
        )
    return entry


def _local(fields: Mapping[str, Any], origin: str, where: str) -> tuple[str, ...]:
    value = fields.get("local")
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not _all_of(value, LOCAL_AXES):
        raise AnnotationError(
            f"{origin}: {_quoted(where)} has `local: {shown(value)}`; local must be a list of "
            f"{', '.join(LOCAL_AXES)}, as in [cp, ep]: the axes over which the output has no "
            "logical counterpart"
        )
    return tuple(dict.fromkeys(value))


def _permuted(
    fields: Mapping[str, Any], origin: str, where: str
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    found = []
    for axis, order in _mapping(fields.get("permuted"), origin, f"{where}: permuted").items():
        dims = order if isinstance(order, list | tuple) else ()
        valid = len(dims) <= MAX_DIMENSIONS and all(map(_is_integer, dims))
        if (
            axis not in LOCAL_AXES
            or not valid
            or sorted(dims) != list(range(len(dims)))
            or list(dims) == sorted(dims)
        ):
            raise AnnotationError(
                f"{origin}: {_quoted(where)} has `permuted: {{{excerpt(axis)}: {shown(order)}}}`; "
                f"`permuted` maps one of {', '.join(LOCAL_AXES)} to an order of dimensions for "
                "torch.permute, which restores the logical tensor. For example, {sp: [1, 0, 2]} "
                "exchanges the first two of three dimensions at Points with sp on"
            )
        found.append((axis, tuple(dims)))
    return tuple(found)


def _decision(fields: Mapping[str, Any], origin: str, where: str) -> Decision:
    value = fields.get("decision", False)
    if isinstance(value, bool):
        return "output" if value else ""
    if isinstance(value, str) and value == "topk":
        return "topk"
    raise AnnotationError(
        f"{origin}: {_quoted(where)} has `decision: {shown(value)}`; decision must be true "
        "(the module returns the indices that it chose), topk (the module calls torch.topk or "
        "argmax inside its forward) or false"
    )


def _gradient_partial(fields: Mapping[str, Any], origin: str, where: str) -> tuple[str, ...]:
    value = fields.get("gradient_partial", [])
    if not isinstance(value, list | tuple) or not _all_of(value, GRADIENT_AXES):
        raise AnnotationError(
            f"{origin}: {_quoted(where)} has `gradient_partial: {shown(value)}`; gradient_partial "
            f"must be a list of {', '.join(GRADIENT_AXES)}, as in [tp]: the axes whose ranks each "
            "compute a term of the gradient (cp is always one of them and is not listed)"
        )
    return tuple(dict.fromkeys(value))


def _size(fields: Mapping[str, Any], key: str, origin: str, where: str) -> int | None:
    value = fields.get(key)
    if value is None or (_is_integer(value) and 1 <= value <= LARGEST_BLOCK):
        return value
    raise AnnotationError(
        f"{origin}: {_quoted(where)} has `{key}: {shown(value)}`; {key} must be a number of "
        "ranks, 1 or more"
    )


def _mapping(value: Any, origin: str, where: str) -> Mapping[str, Any]:
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


def _quoted(where: str) -> str:
    """The location of an entry, for a message: `parameters: fc.weight`."""
    return f"`{excerpt(where)}`"


def _keys(fields: Iterable[str], allowed: tuple[str, ...], origin: str, where: str) -> None:
    for key in fields:
        if key not in allowed:
            raise AnnotationError(
                f"{origin}: {_quoted(where)} has the unknown key {shown(key)}; "
                f"allowed are {', '.join(allowed)}{_nearest(key, allowed)}"
            )


def _nearest(key: str, allowed: tuple[str, ...]) -> str:
    if len(key) > _LONGEST_KEY:
        return ""
    import difflib  # only needed for an error

    near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.7)
    return f". Did you mean {near[0]}?" if near else ""


def _dim(fields: Mapping[str, Any], key: str, origin: str, where: str) -> int | None:
    value = fields.get(key)
    if value is None or (_is_integer(value) and abs(value) <= MAX_DIMENSIONS):
        return value
    raise AnnotationError(
        f"{origin}: {_quoted(where)} has `{key}: {shown(value)}`; {key} must be a dimension, such "
        "as 0, 1, or -1 for the last"
    )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _flag(fields: Mapping[str, Any], key: str, origin: str, where: str) -> bool:
    value = fields.get(key, False)
    if isinstance(value, bool):
        return value
    raise AnnotationError(
        f"{origin}: {_quoted(where)} has `{key}: {shown(value)}`; {key} must be true or false"
    )


def _blocks(fields: Mapping[str, Any], origin: str, where: str) -> tuple[int, ...]:
    value = fields.get("blocks")
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(
        _is_integer(size) and 0 < size <= LARGEST_BLOCK for size in value
    ):
        raise AnnotationError(
            f"{origin}: {_quoted(where)} has `blocks: {shown(value)}`; blocks must be a list of "
            "the sizes of the blocks that are fused in the logical tensor, as in [64, 64, 64]"
        )
    if value and fields.get("tp_dim") is None:
        raise AnnotationError(
            f"{origin}: {_quoted(where)} has `blocks` but no tp_dim; add the tp_dim that splits "
            "the blocks"
        )
    return tuple(value)
