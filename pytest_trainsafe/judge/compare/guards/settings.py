"""Says which settings of the optimizer differ after the last step.  Called by `not_compared`.

Tensors show a momentum or a schedule in later steps only, which the test may not train.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from pytest_trainsafe.trace.facts import Settings
from pytest_trainsafe.trace.reader import Trace

#: Two numbers are one setting up to this relative difference: some optimizers compute theirs.
CLOSE = 1e-3
#: How many settings, and how many parameters of each, a sentence names.
MAX_NAMED = 3

#: The values of a setting by the parameter that has them.
_Values = Mapping[str, frozenset[str]]


def different_settings(candidate: Trace, reference: Trace) -> list[str]:
    """Sentences on the settings that both sides have, with other values for the same parameters.

    If one side's optimizer holds other tensors than the model's parameters, values are compared
    without regard to who has them.
    """
    ours, theirs = _by_setting(candidate), _by_setting(reference)
    found: dict[tuple[str, str, str], list[str]] = {}
    for key in sorted(ours.keys() & theirs.keys()):
        mine, other = ours[key], theirs[key]
        if "" in mine or "" in other:
            mine, other = _together(mine), _together(other)
        for name in mine.keys() & other.keys():
            if not _same(mine[name], other[name]):
                difference = key, _shown(mine[name]), _shown(other[name])
                found.setdefault(difference, []).append(name)
    sentences = [
        f"not compared: what the optimizer does after the last step: {key} is {here} in the "
        f"candidate and {there} in the reference{_of(names)}; train one step more to see its effect"
        for (key, here, there), names in list(found.items())[:MAX_NAMED]
    ]
    if len(found) > MAX_NAMED:
        sentences[-1] += f" ({len(found) - MAX_NAMED} more settings differ)"
    return sentences


def _by_setting(trace: Trace) -> dict[str, _Values]:
    found: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for rank in trace.ranks:
        for group in rank.events_of(Settings):
            for key, value in group.values.items():
                for name in group.parameters or ("",):
                    found[key][name].add(value)
    return {key: {n: frozenset(v) for n, v in names.items()} for key, names in found.items()}


def _together(values: _Values) -> _Values:
    return {"": frozenset().union(*values.values())}


def _same(ours: frozenset[str], theirs: frozenset[str]) -> bool:
    return all(
        any(_close(one, other) for other in others)
        for these, others in ((ours, theirs), (theirs, ours))
        for one in these
    )


def _close(one: str, other: str) -> bool:
    if one == other:
        return True
    ours, theirs = map(_numbers, (one.split(), other.split()))
    return len(ours) == len(theirs) and all(
        a == b
        or (isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=CLOSE))
        for a, b in zip(ours, theirs, strict=True)
    )


def _numbers(parts: Sequence[str]) -> list[float | str]:
    """The parts of a value as numbers; what is none stays text, whoever wrote the trace."""
    found: list[float | str] = []
    for part in parts:
        try:
            found.append(float(part))
        except ValueError:
            found.append(part)
    return found


def _shown(values: frozenset[str]) -> str:
    return " and ".join(sorted(map(_shown_value, values))[:MAX_NAMED])


def _shown_value(value: str) -> str:
    parts = [f"{each:g}" if isinstance(each, float) else each for each in _numbers(value.split())]
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"


def _of(names: list[str]) -> str:
    named = sorted(filter(None, names))
    if not named:
        return ""
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    return f", for {', '.join(named[:MAX_NAMED])}{more}"
