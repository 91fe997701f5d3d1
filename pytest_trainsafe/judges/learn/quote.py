"""Describes a call or a change in one line, for a report."""

from __future__ import annotations

from pytest_trainsafe.core.usage import excerpt, shown
from pytest_trainsafe.judges.learn.events.events import Call, Change, Value

_MAX_VALUES = 8


def quote(record: Call | Change) -> str:
    """The record in one line, with the step and the micro-batch in which it happened."""
    return f"{_where(record)}{_call(record) if isinstance(record, Call) else _change(record)}"


def _where(record: Call | Change) -> str:
    names = (("rank", "rank"), ("step", "step"), ("microbatch", "micro-batch"), ("phase", ""))
    parts = [
        f"{label} {record.meta[name]}".strip()
        for name, label in names
        if record.meta.get(name) not in (None, "")
    ]
    return f"{excerpt(', '.join(parts))}: " if parts else ""


def _call(call: Call) -> str:
    arguments = [
        f"{place.removeprefix('arg.')}={value_text(value)}"
        for place, value in call.values.items()
        if not place.startswith("result")
    ]
    results = [value_text(value) for place, value in call.values.items() if "result" in place[:6]]
    more = ["..."] * (len(arguments) > _MAX_VALUES)
    inside = ", ".join([*arguments[:_MAX_VALUES], *more])
    arrow = f" -> {', '.join(results[:_MAX_VALUES])}" if results else ""
    raised = f" raised {excerpt(call.exception)}" if call.exception else ""
    return f"{excerpt(call.api)}({inside}){arrow}{raised}"


def _change(change: Change) -> str:
    name = f"{excerpt(change.object)}.{excerpt(change.attribute)}"
    if not change.changed:
        return f"{name} = {value_text(change.after)} (unchanged)"
    before = "" if change.before is None else f"{value_text(change.before)} -> "
    by = "" if change.by is None else f" (by {excerpt(change.by.api)})"
    return f"{name}: {before}{value_text(change.after)}{by}"


def value_text(value: Value) -> str:
    """A value in a few words: a plain value itself, a tensor by dtype, shape, norm and hash."""
    facts = value.tensor
    if facts is None:
        plain = value.plain is not None or value.type == "NoneType"
        return shown(value.plain) if plain else excerpt(value.type)
    shape = "x".join(map(str, facts.shape)) or "scalar"
    parts = [excerpt(facts.dtype.removeprefix("torch.")), shape]
    if facts.zero:
        parts.append("zero")
    elif facts.norm is not None:
        parts.append(f"norm {facts.norm:.4g}")
    if not facts.finite:
        parts.append("not finite")
    if facts.digest and not facts.zero:
        parts.append(f"#{facts.digest & 0xFFFFFFFF:08x}")
    return f"<{' '.join(parts)}>"
