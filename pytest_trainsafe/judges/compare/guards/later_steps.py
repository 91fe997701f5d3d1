"""Says what only a later step than the test's last would show.  Called by `not_compared`.

A momentum, a schedule or a count acts in later steps, as do gradients that nobody clears.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_trainsafe.core.usage import first_few
from pytest_trainsafe.trace.facts import Counted, Settings
from pytest_trainsafe.trace.reader import Trace

#: Two numbers are one setting up to this relative difference: some optimizers compute theirs.
CLOSE = 1e-3
#: How many settings or numbers are listed, and how many values of each.
MAX_NAMED = 3

#: The values of a setting by the parameter that has them.
_Values = Mapping[str, frozenset[str]]


def later_steps(candidate: Trace, reference: Trace, failed: bool = False) -> list[str]:
    """Sentences on what the sides leave to a step that the test does not train.

    If the test `failed`, settings that differ may be the reason, and are only named.
    """
    return [
        *_left_gradients(candidate, reference),
        *different_settings(candidate, reference, failed),
        *different_numbers(candidate, reference),
        *_single_step(candidate),
    ]


def _left_gradients(candidate: Trace, reference: Trace) -> list[str]:
    """A sentence if only one side leaves gradients, to which the next step would add."""
    ours, theirs = (
        any("gradients" in rank.note("left") for rank in trace.ranks)
        for trace in (candidate, reference)
    )
    if ours == theirs:
        return []
    here, there = ("candidate", "reference") if ours else ("reference", "candidate")
    text = (
        f"not compared: the gradients after the last step: the {here} keeps them, and the {there} "
        "clears them; train one step more to see whether the next step adds to them"
    )
    return [text]


def _single_step(candidate: Trace) -> list[str]:
    """A sentence if the test trains one step: much of what a program keeps acts in a second one."""
    if max((len(rank.steps) for rank in candidate.ranks), default=0) != 1:
        return []
    text = (
        "not compared: what the program keeps for a second step, such as a queue or a running "
        "mean, because the test trains one step"
    )
    return [text]


def different_numbers(candidate: Trace, reference: Trace) -> list[str]:
    """Sentences on numbers that a module or an optimizer counts, and that differ."""
    ours, theirs = _counted(candidate), _counted(reference)
    found = [
        f"not compared: what follows from the number {key} of the {owner}: after the last step, it "
        f"is {_shown(ours[owner, key])} in the candidate and {_shown(theirs[owner, key])} in the "
        "reference"
        for owner, key in sorted(ours.keys() & theirs.keys())
        if not _same(ours[owner, key], theirs[owner, key])
    ]
    return _limited(found, "numbers")


def _counted(trace: Trace) -> dict[tuple[str, str], frozenset[str]]:
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for rank in trace.ranks:
        for each in rank.events_of(Counted):
            for key, value in each.values.items():
                found[each.owner, key].add(value)
    return {key: frozenset(values) for key, values in found.items()}


def _limited(sentences: list[str], what: str) -> list[str]:
    """The first sentences; the last one says how many are left out."""
    if len(sentences) <= MAX_NAMED:
        return sentences
    kept = sentences[:MAX_NAMED]
    return [*kept[:-1], f"{kept[-1]} ({len(sentences) - MAX_NAMED} more {what} differ)"]


@dataclass(frozen=True, slots=True)
class Apart:
    """A setting of the optimizer that differs: its name, both values, and the parameters.

    `names` is empty if it is not known which parameters have the values.
    """

    key: str
    here: str
    there: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        values = f"{self.key} is {self.here} in the candidate and {self.there} in the reference"
        return f"{values}{_of(self.names)}"


def different_settings(candidate: Trace, reference: Trace, failed: bool = False) -> list[str]:
    """Sentences on the settings of `settings_apart`, which may be the reason if the test failed."""
    found = settings_apart(candidate, reference)
    if failed:
        differ = "the optimizer's settings differ after the last step"
        sentences = [f"{differ}: {each}" for each in found]
    else:
        sentences = [
            f"not compared: what the optimizer does after the last step: {each}; train one step "
            "more to see its effect"
            for each in found
        ]
    return _limited(sentences, "settings")


def settings_apart(candidate: Trace, reference: Trace, step: int | None = None) -> list[Apart]:
    """The settings that both sides have after the program, with other values for the same
    parameters.

    With a `step`, those with which the optimizers step in it.
    If one side's optimizer holds other tensors than the model's parameters, values are compared
    without regard to who has them.
    """
    ours, theirs = _by_setting(candidate, step), _by_setting(reference, step)
    found: dict[tuple[str, str, str], list[str]] = {}
    for key in sorted(ours.keys() & theirs.keys()):
        mine, other = ours[key], theirs[key]
        if "" in mine or "" in other:
            mine, other = _together(mine), _together(other)
        for name in mine.keys() & other.keys():
            if not _same(mine[name], other[name]):
                difference = key, _shown(mine[name]), _shown(other[name])
                found.setdefault(difference, []).append(name)
    return [
        Apart(key, here, there, tuple(sorted(filter(None, names))))
        for (key, here, there), names in found.items()
    ]


def _by_setting(trace: Trace, step: int | None) -> dict[str, _Values]:
    found: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for rank in trace.ranks:
        for group in (each for each in rank.events_of(Settings) if each.step == step):
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


def _of(names: Sequence[str]) -> str:
    return f", for {first_few([*names])}" if names else ""
