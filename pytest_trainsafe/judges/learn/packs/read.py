"""Reads packs.  Anybody may have written or edited a pack, so nothing in it is executed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from pytest_trainsafe.core.untrusted import MALFORMED, read_file
from pytest_trainsafe.core.usage import excerpt, listing, nearest, shown
from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.judges.learn.fields import FieldError, InvariantFields, Seen
from pytest_trainsafe.judges.learn.invariant import Hypothesis, Invariant
from pytest_trainsafe.judges.learn.packs.pack import (
    FORMAL,
    SCHEMA,
    WORDS,
    Pack,
    invariant_lines,
    one_line,
)
from pytest_trainsafe.judges.learn.relation import Relation

MAX_BYTES, MAX_LINE, MAX_INVARIANTS = 64 * 2**20, 50_000, 100_000

_SECTION = re.compile(r"\[([A-Za-z_]\w*-[0-9a-f]{10})\](?: (\{.*\}))?")
_HEADER = re.compile(r'(schema|name|program ("(?:[^"\\]|\\.)*")) = (.*)')
_KEYS = (*WORDS, *FORMAL)
#: What an invariant may have besides; its text is for readers only.
_EXAMPLE = "example"
_PLAIN = bool | int | float | str | None


class PackError(TrainsafeError, ValueError):
    """Raised for a pack that cannot be used.  The message names the file and mostly the line."""


def read_pack(path: Path, relations: Mapping[str, Relation]) -> Pack:
    """Read a pack from a file.  Raises PackError if the file is unreadable or no valid pack."""
    try:
        data = read_file(path, max_bytes=MAX_BYTES)
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PackError(f"{path}: the pack is not text in UTF-8: {error.reason}") from error
    except OSError as error:
        raise PackError(
            f"{excerpt(str(path), 500)}: the pack cannot be read: {excerpt(str(error.strerror))}"
        ) from error
    return parse_pack(text, str(path), relations)


def parse_pack(text: str, origin: str, relations: Mapping[str, Relation]) -> Pack:
    """Read a pack from its text; `origin` names it in errors.  Raises PackError."""
    return _Reader(origin, relations).read(text)


class _Reader:
    def __init__(self, origin: str, relations: Mapping[str, Relation]) -> None:
        self._origin = origin
        self._relations = relations
        self._line = 0
        self._schema = False
        self._name: str | None = None
        self._programs: dict[str, Mapping[str, str]] = {}
        self._found: dict[Hypothesis, int] = {}
        self._invariants: list[Invariant] = []
        #: The invariant that is being read: its id, the number of its first line, the value of each
        #: key, and the number of the line with the key.
        self._id = ""
        self._start = 0
        self._values: dict[str, str] = {}
        self._lines: dict[str, int] = {}

    def read(self, text: str) -> Pack:
        for number, line in enumerate(text.split("\n"), 1):
            self._line = number
            if len(line) > MAX_LINE:
                raise self._error(f"the line has more than {MAX_LINE} characters; shorten it")
            stripped = line.strip()
            if not stripped or stripped.startswith("#"):
                continue
            if not self._schema:
                self._read_schema(stripped)
            elif stripped.startswith("["):
                self._finish()
                self._line = number
                self._begin(stripped)
            elif self._id:
                self._value(stripped)
            else:
                self._header(stripped)
        if not self._schema:
            raise self._error(f"there is no line `schema = {SCHEMA}`; is this file a pack?")
        self._finish()
        if self._name is None:
            raise self._error('there is no line `name = "..."` before the first invariant')
        for invariant in self._invariants:
            for each in invariant.support:
                if each.program not in self._programs:
                    raise PackError(
                        f"{self._origin}: line {self._found[invariant.claim]}: {invariant.id} was "
                        f"seen in {shown(each.program)}, which no `program` line names; the "
                        f"programs are {listing(self._programs) or 'none'}"
                    )
        invariants = sorted(self._invariants, key=lambda each: each.claim.order)
        return Pack(self._name, tuple(invariants), self._programs)

    def _read_schema(self, line: str) -> None:
        found = re.fullmatch(r"schema = (\d{1,9})", line)
        if found is None:
            raise self._error(
                f"found {shown(line)}, but a pack must begin with `schema = {SCHEMA}`; is this "
                "file a pack?"
            )
        if int(found[1]) != SCHEMA:
            raise self._error(
                f"the pack has schema {found[1]}, but this release reads schema {SCHEMA}; learn it "
                "again with --trainsafe-learn"
            )
        self._schema = True

    def _header(self, line: str) -> None:
        found = _HEADER.fullmatch(line)
        if found is None or found[1] == "schema":
            raise self._error(
                f"found {shown(line)}; before the first invariant, only lines `name = ...` and "
                '`program "..." = {...}` are allowed'
            )
        if found[1] == "name":
            self._once(self._name is None, "name")
            self._name = self._json(found[3], str, 'a text, as in "pytorch"')
            return
        key: str = self._json(found[2], str, "a text in quotes")
        self._once(key not in self._programs, shown(key))
        example = 'versions, as in {"torch": "2.13.0"}'
        self._programs[key] = self._json(found[3], dict[str, str], example)

    def _begin(self, line: str) -> None:
        found = _SECTION.fullmatch(line)
        if found is None:
            raise self._error(
                f"found {shown(line)}; an invariant begins with its name in brackets, as in "
                "[contain-0123456789]"
            )
        if len(self._invariants) == MAX_INVARIANTS:
            raise self._error(
                f"there are more than {MAX_INVARIANTS} invariants; divide them among several packs"
            )
        self._id, self._start = found[1], self._line
        self._values, self._lines = {}, {}
        if found[2] is not None:
            self._unfold(found[2])

    def _unfold(self, text: str) -> None:
        """Read an invariant whose lines are folded into one."""
        parts = self._json(text, dict[str, msgspec.Raw], 'JSON, as in {"says": "...", ...}')
        for key in parts:
            if key not in _KEYS:
                raise self._error(
                    f"found the key {shown(key)}; the keys are {', '.join(_KEYS)}"
                    f"{nearest(key, _KEYS)}"
                )
        for key, raw in parts.items():
            value = bytes(raw).decode()
            known: str = self._json(value, str, "a text in quotes") if key in WORDS else value
            self._values[key], self._lines[key] = known, self._line

    def _value(self, line: str) -> None:
        key, equals, value = line.partition(" = ")
        known = (*_KEYS, _EXAMPLE)
        if not equals or key not in known:
            raise self._error(
                f"found {shown(line)}; an invariant may only have lines `KEY = VALUE` with the "
                f"keys {', '.join(known)}{nearest(key, known)}"
            )
        self._once(key not in self._values, key)
        self._values[key], self._lines[key] = value, self._line

    def _finish(self) -> None:
        """Check the invariant that was read, if any, and add it to the pack."""
        if not self._id:
            return
        missing = [key for key in _KEYS if key not in self._values]
        if missing:
            raise self._at(self._start, f"{self._id} has no {' and no '.join(missing)}")
        claim = self._field("claim", dict[str, _PLAIN], 'as in {"relation": "contain", ...}')
        parts = self._field("precondition", list[list[list[_PLAIN]]], "as in [[]] for always")
        within = self._field("within", dict[str, list[_PLAIN]], 'as in {"no_grad": [false]}')
        example = 'as in {"program": 12} or {"program": {"configuration": 12}}'
        seen = self._field("seen", dict[str, Seen], example)
        try:
            invariant = replace(
                InvariantFields(claim, parts, within, seen).invariant(),
                example=one_line(self._values.get(_EXAMPLE, "")),
            )
        except FieldError as error:
            raise self._at(self._start, f"{self._id}: {error}") from None
        relation = self._relations.get(invariant.claim.relation)
        if relation is None:
            name = invariant.claim.relation
            raise self._at(
                self._lines["claim"],
                f"{self._id} has the unknown relation {shown(name)}; the known relations are "
                f"{listing(self._relations)}{nearest(name, self._relations)}. A project adds "
                "relations with the hook pytest_trainsafe_relations",
            )
        self._check_words(invariant, relation)
        if invariant.claim in self._found:
            raise self._at(
                self._start,
                f"{self._id} appears twice (line {self._found[invariant.claim]} and line "
                f"{self._start}); keep one",
            )
        self._found[invariant.claim] = self._start
        self._invariants.append(invariant)
        self._id = ""

    def _check_words(self, invariant: Invariant, relation: Relation) -> None:
        """Raise PackError if the lines `says` and `when` differ from what the invariant states.

        A reviewer reads these two lines; the other lines of the invariant are formal.
        """
        try:
            lines = invariant_lines(invariant, relation)
        except (KeyError, AssertionError, TypeError, ValueError):
            lines = []
        if not lines or not relation.valid(invariant.claim):
            raise self._at(
                self._lines["claim"],
                f"{self._id}: the relation {shown(invariant.claim.relation)} does not allow the "
                f"parameters of this claim: {excerpt(self._values['claim'], 300)}. Do not edit "
                "claims; learn them with --trainsafe-learn",
            )
        for key, line in zip(("says", "when"), lines[1:3], strict=True):
            wanted = line.partition(" = ")[2]
            if one_line(self._values[key]).strip() != wanted.strip():
                formal = "claim" if key == "says" else "precondition"
                raise self._at(
                    self._lines[key],
                    f"{self._id}: `{key}` does not match `{formal}`; it must be: "
                    f"{excerpt(wanted, 500)}",
                )
        if self._id != invariant.id:
            raise self._at(
                self._start,
                f"{self._id} has the claim of {invariant.id}: the name of an invariant is computed "
                "from its claim. Do not edit claims; learn them with --trainsafe-learn",
            )

    def _field(self, key: str, kind: Any, example: str) -> Any:
        self._line = self._lines[key]
        return self._json(self._values[key], kind, f"JSON {example}")

    def _json(self, text: str, kind: Any, what: str) -> Any:
        try:
            return msgspec.json.decode(text, type=kind)
        except (*MALFORMED, msgspec.ValidationError) as error:
            raise self._error(
                f"{excerpt(text, 200)} must be {what} ({excerpt(str(error), 200)})"
            ) from None

    def _once(self, first: bool, what: str) -> None:
        if not first:
            raise self._error(f"{what} appears twice; keep one")

    def _error(self, problem: str) -> PackError:
        return self._at(self._line, problem)

    def _at(self, line: int, problem: str) -> PackError:
        return PackError(f"{excerpt(self._origin, 500)}: line {line}: {problem}")
