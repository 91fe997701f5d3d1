"""A pack of invariants, and its text.

The text is written for review.  An invariant that a reviewer should read takes a few lines in a
fixed order, one of them a plain sentence.  The others are folded: each takes one line, without an
example.  A change of one invariant therefore changes few lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pytest_trainsafe.judges.learn.fields import InvariantFields
from pytest_trainsafe.judges.learn.inference.learn import Learned
from pytest_trainsafe.judges.learn.invariant import Invariant
from pytest_trainsafe.judges.learn.packs.parts import parts_of
from pytest_trainsafe.judges.learn.relation import Relation
from pytest_trainsafe.judges.learn.wording import in_words

#: The version of the format.  `read` refuses packs of another version.
SCHEMA = 2
#: What an invariant has in words, and as data.
WORDS, FORMAL = ("says", "when"), ("claim", "precondition", "within", "seen")
#: The longest line that an invariant is folded into.
LONGEST = 20_000
#: The ending of a pack's file name.
SUFFIX = ".pack"

_HEAD = """\
# Invariants that pytest-trainsafe learned from healthy runs of the programs below.
# `says` and `when` are what a reviewer reads; they follow from `claim` and `precondition`.
# `example` is a record that keeps the rule.  Rules that say less take one line each, below.
# An invariant is judged only `within` the contexts that it was seen in.
# To withdraw an invariant, delete its lines.
"""


@dataclass(frozen=True, slots=True)
class Pack:
    """Invariants, and the programs that they were learned from.

    `programs` has the versions of the libraries that each program ran with.
    """

    name: str
    invariants: tuple[Invariant, ...]
    programs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def pack_of(name: str, learned: Learned) -> Pack:
    """A pack with the name `name` and the invariants and programs that `learn` returned."""
    return Pack(name, learned.invariants, learned.programs)


def pack_text(pack: Pack, relations: Mapping[str, Relation]) -> str:
    """The text of a pack's file.  `relations` has the relations of its invariants, by name."""
    lines = [_HEAD, f"schema = {SCHEMA}", f"name = {_json(pack.name)}"]
    for program in sorted(pack.programs):
        versions = dict(sorted(pack.programs[program].items()))
        lines.append(f"program {_json(program)} = {_json(versions)}")
    for part in parts_of(pack.invariants, relations):
        lines += ["", "", *(f"# {line}" for line in part.heading)]
        lines += [""] * part.folded
        for invariant in part.invariants:
            shown = invariant_lines(invariant, relations[invariant.claim.relation])
            folded = folded_line(shown) if part.folded else ""
            lines += [folded] if 0 < len(folded) < LONGEST else ["", *shown]
    return "\n".join(lines) + "\n"


def write_pack(pack: Pack, path: Path, relations: Mapping[str, Relation]) -> None:
    """Write the text of a pack to a file atomically, so that no reader finds a partial pack."""
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(pack_text(pack, relations), encoding="utf-8")
    partial.replace(path)


def invariant_lines(invariant: Invariant, relation: Relation) -> list[str]:
    """The lines of an invariant in the text of a pack; `relation` is the relation that it names."""
    fields, explained = InvariantFields.of(invariant), relation.explain(invariant.claim)
    example = [f"example = {one_line(invariant.example)}"] if invariant.example else []
    return [
        f"[{invariant.id}]",
        f"says = {one_line(in_words(explained.sentence))}",
        f"when = {one_line(in_words(str(invariant.precondition)))}",
        f"# usual cause if it breaks: {one_line(explained.causes)}",
        *example,
        f"claim = {_json(fields.claim)}",
        f"precondition = {_json(fields.precondition)}",
        f"within = {_json(fields.within)}",
        f"seen = {_json(fields.seen)}",
    ]


def folded_line(lines: Sequence[str]) -> str:
    """The lines of an invariant as one line, without what is for readers only."""
    section, *rest = lines
    pairs = [line.partition(" = ") for line in rest]
    values = {key: value for key, _, value in pairs if key in (*WORDS, *FORMAL)}
    parts = [f'"{key}": {_json(values[key])}' for key in WORDS]
    parts += [f'"{key}": {values[key]}' for key in FORMAL]
    return f"{section} {{{', '.join(parts)}}}"


def one_line(text: str) -> str:
    """A text with its line ends and control characters escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _json(data: object) -> str:
    text = msgspec.json.format(msgspec.json.encode(data), indent=0).decode()
    # Line separators of Unicode would end a line for some editors and for `str.splitlines`.
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
