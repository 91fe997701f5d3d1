"""Converts a learned invariant to the plain data of a pack and back, with checks of the data."""

from __future__ import annotations

import msgspec

from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.judges.learn.conditions import KINDS, Condition, Kind, Precondition
from pytest_trainsafe.judges.learn.invariant import Invariant, Support, hypothesis

_Plain = bool | int | float | str | None

#: Limits of an invariant from a file.
MAX_PARAMS, MAX_SCENARIOS, MAX_CONDITIONS, MAX_PROGRAMS, MAX_TEXT = 16, 64, 64, 1000, 300
#: The most configurations of one program.
MAX_SETTINGS = 1000

#: The numbers of examples in the configurations of a program, or one number if it has only one.
Seen = int | dict[str, int]


class FieldError(TrainsafeError, ValueError):
    """Raised for fields of a pack that describe no invariant.  The message says what is wrong."""


class InvariantFields(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of an invariant in a pack.

    `claim` has the name of the relation and the parameters.  `precondition` has the scenarios: each
    is a list of conditions, and a condition is [kind, field] or ["constant", field, value].
    `within` maps fields to lists of values: an example whose field has another value is not judged.
    `seen` maps each program from which the invariant was learned to the number of its examples, or
    to a mapping from its configurations to these numbers.
    """

    claim: dict[str, _Plain]
    precondition: list[list[list[_Plain]]]
    within: dict[str, list[_Plain]]
    seen: dict[str, Seen]

    @classmethod
    def of(cls, invariant: Invariant) -> InvariantFields:
        """The fields of an invariant."""
        claim = invariant.claim
        parts = [
            [
                [each.kind, each.field, *([each.value] if each.kind == "constant" else [])]
                for each in part
            ]
            for part in invariant.precondition.any_of
        ]
        within = {field: list(values) for field, values in invariant.within}
        seen = {each.program: _seen(dict(each.settings)) for each in invariant.support}
        return cls({"relation": claim.relation, **dict(claim.params)}, parts, within, seen)

    def invariant(self) -> Invariant:
        """The invariant that the fields describe.  Raises FieldError if they describe none."""
        params = dict(self.claim)
        relation = params.pop("relation", None)
        if not isinstance(relation, str):
            raise FieldError('the claim has no relation; name one as in {"relation": "contain"}')
        _require(len(params) <= MAX_PARAMS, f"the claim has more than {MAX_PARAMS} parameters")
        for name, value in params.items():
            _require(_short(name) and _short(value), f"a text has more than {MAX_TEXT} characters")
        parts = self.precondition
        _require(
            bool(parts),
            "the precondition is empty, so it never holds; write [[]] for one that always holds",
        )
        _require(
            len(parts) <= MAX_SCENARIOS and all(len(part) <= MAX_CONDITIONS for part in parts),
            f"the precondition has more than {MAX_SCENARIOS} scenarios, which are lists of "
            f"conditions, or one of the lists has more than {MAX_CONDITIONS} conditions",
        )
        _require(len(self.seen) <= MAX_PROGRAMS, f"`seen` has more than {MAX_PROGRAMS} programs")
        for program in self.seen:
            _require(_short(program), f"a program's name has more than {MAX_TEXT} characters")
        _require(len(self.within) <= MAX_CONDITIONS, "`within` has too many fields")
        for field, values in self.within.items():
            _require(
                _short(field) and 0 < len(values) <= MAX_CONDITIONS and all(map(_short, values)),
                f"a field of `within` must have 1 to {MAX_CONDITIONS} values, and its texts at "
                f"most {MAX_TEXT} characters",
            )
        within = tuple((field, tuple(self.within[field])) for field in sorted(self.within))
        found = Precondition(tuple(tuple(map(_condition, part)) for part in parts))
        support = tuple(_support(program, self.seen[program]) for program in sorted(self.seen))
        return Invariant(hypothesis(relation, **params), found, support, within)


def _seen(settings: dict[str, int]) -> Seen:
    return settings[""] if [*settings] == [""] else settings


def _support(program: str, seen: Seen) -> Support:
    settings = {"": seen} if isinstance(seen, int) else seen
    _require(
        0 < len(settings) <= MAX_SETTINGS,
        f"a program in `seen` must have 1 to {MAX_SETTINGS} configurations",
    )
    for setting, examples in settings.items():
        _require(_short(setting), f"a configuration has more than {MAX_TEXT} characters")
        _require(0 < examples < 2**53, "the number of a program's examples must be 1 or more")
    return Support(program, tuple(sorted(settings.items())))


def _condition(fields: list[_Plain]) -> Condition:
    kind = next((known for known in KINDS if fields and fields[0] == known), None)
    _require(
        kind is not None,
        f"a condition must begin with one of {', '.join(KINDS)}, as in "
        '["constant", "phase", "forward"]',
    )
    size = 3 if kind == "constant" else 2
    _require(
        len(fields) == size and isinstance(fields[1], str),
        f"a condition of the kind {kind} has {size} entries: the kind, a field"
        + (" and a value" if size == 3 else ""),
    )
    value = fields[2] if size == 3 else None
    _require(_short(fields[1]) and _short(value), f"a text has more than {MAX_TEXT} characters")
    return Condition(_kind(kind), str(fields[1]), value)


def _kind(kind: Kind | None) -> Kind:
    assert kind is not None
    return kind


def _short(value: _Plain) -> bool:
    return not isinstance(value, str) or len(value) <= MAX_TEXT


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise FieldError(problem)
