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
    Entries,
    LossEntry,
    OutputEntry,
    ParameterEntry,
    is_glob,
)
from pytest_trainsafe.annotations.fields import (
    blocks_of,
    check_keys,
    decision_of,
    dimension,
    flag,
    gradient_partial,
    local_axes,
    loss_axes,
    mapping,
    nearest,
    permutations,
    placing,
    quoted,
    size,
)
from pytest_trainsafe.core.usage import excerpt, shown

#: Maximum length of a pattern, and maximum number of patterns with a wildcard in one section:
#: every name is matched against each of them.
LONGEST_PATTERN, MAX_GLOBS = 1000, 1000
OUTPUT_KEYS = (
    *("tp_dim", "sp_dim", "cp_dim", "tp_partial", "sp_partial", "cp_partial"),
    *("blocks", "local", "permuted", "decision", "dp_dim", "slices", "axes"),
)
#: A buffer has no partial sums, and a decision is never stored in one.
BUFFER_KEYS = (
    *("tp_dim", "sp_dim", "cp_dim", "blocks", "local", "optional"),
    *("slices", "axes"),
)

#: The tensors of a module that an entry may describe.
FLOWS = ("output", "output_grad", "input", "input_grad")

_PATTERNS = ("parameters", "modules", "buffers")
_SECTIONS = ("cp_order", "loss", "gradients", *_PATTERNS)


def parse(data: Any, origin: str, model: str = "") -> Entries:
    """Checks the data of an annotation file, or a mapping of its form; `origin` names it in errors.

    For a file with several models, the result has the common entries and then those of `model`,
    which take precedence.  Raises AnnotationError for invalid data of any kind.
    """
    top = mapping(data, origin, "the file")
    check_keys(top, (*_SECTIONS, "models"), origin, "the file")
    common = {key: value for key, value in top.items() if key != "models"}
    models = mapping(top.get("models"), origin, "models")
    found = {}
    for name, own in models.items():
        where = f"models: {name}"
        check_keys(mapping(own, origin, where), _SECTIONS, origin, where)
        found[name] = _entries(_joined(common, own or {}, origin), f"{origin}#{name}")
    if not model and not models:
        return _entries(common, origin)
    known = ", ".join(models) or "none"
    if model in found:
        return found[model]
    if model:
        raise AnnotationError(
            f"{origin} has no model {shown(model)} under `models`; it has {excerpt(known)}"
            f"{nearest(model, tuple(models))}"
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
        first, last = (mapping(each.get(section), origin, section) for each in (common, own))
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
            if value and flag(value, "optional", origin, f"{section}: {pattern}")
        ),
    )
    cut = [(f"modules: {pattern}", [*outputs.values()]) for pattern, outputs in entries.modules]
    cut += [(f"buffers: {pattern}", [entry]) for pattern, entry in entries.buffers]
    for where, outputs in cut:
        if order is None and any(entry.cp_dim is not None for entry in outputs):
            raise AnnotationError(
                f"{origin}: {quoted(where)} has a cp_dim, so the file must declare "
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
    entries = mapping(top.get(name), origin, name)
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
    fields = mapping(value, origin, "loss")
    check_keys(fields, ("partial", "mean"), origin, "loss")
    partial, mean = (loss_axes(fields, key, origin, f"loss: {key}") for key in ("partial", "mean"))
    entry = LossEntry(partial, mean)
    if both := set(entry.partial) & set(entry.mean):
        raise AnnotationError(
            f"{origin}: `loss` lists {both.pop()} under both `partial` and `mean`; remove it from "
            "one of them"
        )
    return entry


def _gradients(value: Any, origin: str) -> tuple[str, ...] | None:
    fields = mapping(value, origin, "gradients")
    check_keys(fields, ("mean",), origin, "gradients")
    if "mean" not in fields:
        return None
    return loss_axes(fields, "mean", origin, "gradients: mean")


def _parameter(value: Any, origin: str, where: str) -> ParameterEntry:
    fields = mapping(value, origin, where)
    allowed = (
        *("tp_dim", "blocks", "sequence_parallel", "gradient_partial"),
        *("expert_parallel", "expert_tp_size", "optional", "slices", "axes"),
    )
    check_keys(fields, allowed, origin, where)
    entry = ParameterEntry(
        dimension(fields, "tp_dim", origin, where),
        blocks_of(fields, origin, where),
        flag(fields, "sequence_parallel", origin, where),
        flag(fields, "expert_parallel", origin, where),
        size(fields, "expert_tp_size", origin, where),
        gradient_partial(fields, origin, where),
        *placing(fields, origin, where),
    )
    if "tp" in entry.gradient_partial and entry.tp_dim is not None:
        raise AnnotationError(
            f"{origin}: {quoted(where)} has a tp_dim and gradient_partial over tp; remove one of "
            "them: gradient_partial over tp is for parameters that every tp rank holds whole"
        )
    if entry.sequence_parallel and entry.tp_dim is not None:
        raise AnnotationError(
            f"{origin}: {quoted(where)} has a tp_dim and sequence_parallel; remove one of them: "
            "sequence_parallel is for parameters that every tp rank holds whole"
        )
    return entry


def _module(value: Any, origin: str, where: str) -> dict[str, OutputEntry]:
    outputs = {}
    for name, fields in mapping(value, origin, where).items():
        if name == "optional":
            continue
        if name.split(".", 1)[0] not in FLOWS:
            raise AnnotationError(
                f"{origin}: {quoted(where)} has the key {shown(name)}; allowed are "
                f"{', '.join(FLOWS)}, or a part of them such as output.0 or output.logits, and "
                f"optional{nearest(name, (*FLOWS, 'optional'))}"
            )
        entry = outputs[name] = _output(fields, origin, f"{where}: {name}")
        if entry.decision and name != "output":
            raise AnnotationError(
                f"{origin}: {quoted(f'{where}: {name}')} has `decision`, which describes the "
                "whole module and is allowed only under `output`"
            )
        if entry.permuted and name.split(".", 1)[0].endswith("_grad"):
            raise AnnotationError(
                f"{origin}: {quoted(f'{where}: {name}')} has `permuted`, which is allowed only "
                "under `output` and `input`: the order of a tensor's dimensions is also that of "
                "its gradient"
            )
    return outputs


def _output(
    value: Any, origin: str, where: str, allowed: tuple[str, ...] = OUTPUT_KEYS
) -> OutputEntry:
    fields = mapping(value, origin, where)
    check_keys(fields, allowed, origin, where)
    entry = OutputEntry(
        dimension(fields, "tp_dim", origin, where),
        dimension(fields, "sp_dim", origin, where),
        dimension(fields, "cp_dim", origin, where),
        flag(fields, "tp_partial", origin, where),
        flag(fields, "sp_partial", origin, where),
        flag(fields, "cp_partial", origin, where),
        blocks_of(fields, origin, where),
        local_axes(fields, origin, where),
        permutations(fields, origin, where),
        decision_of(fields, origin, where),
        dimension(fields, "dp_dim", origin, where),
        *placing(fields, origin, where),
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
            f"{origin}: {quoted(where)} has {' and '.join(over_tp)}, which all act over tp; keep "
            "one of them"
        )
    if entry.cp_dim is not None and entry.cp_partial:
        raise AnnotationError(
            f"{origin}: {quoted(where)} has cp_dim and cp_partial, which both act over cp; keep "
            "one of them"
        )
    return entry
