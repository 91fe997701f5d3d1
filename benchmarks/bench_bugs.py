"""Judges every planted bug at its Points, and writes what was found as docs/bugs.md.

A bug of the catalogue must fail at every Point that triggers it, starting at the tensor that its
entry names, and pass at all others.  `--only NAME` judges some, `--quick` two Points of each bug,
`--write` writes the page, and `--record sketch` judges by sketches first.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from _measure import ROOT, finish, machine, median, show

from pytest_trainsafe.ladder import climb
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.reference_models.bugs import BUGS, Bug
from pytest_trainsafe.reference_models.corpus import planted
from pytest_trainsafe.session import Session
from pytest_trainsafe.settings import Settings
from pytest_trainsafe.sweep.case import Case

PAGE = ROOT / "docs" / "bugs.md"


@dataclass
class Found:
    """What became of one bug: by Point, where it was found ("" for nowhere), and the seconds."""

    bug: Bug
    triggering: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    patterns: set[str] = field(default_factory=set)
    faulty: set[str] = field(default_factory=set)
    seconds: list[float] = field(default_factory=list)

    @property
    def expected(self) -> str:
        """The beginning of the report's first line."""
        path = f"{self.bug.module}.{self.bug.tensor}" if self.bug.module else self.bug.tensor
        return f"{path} · {self.bug.kind}"

    @property
    def right(self) -> int:
        """At how many triggering Points the report starts where the entry says."""
        return sum(where.startswith(self.expected) for where in self.triggering.values())

    @property
    def as_catalogued(self) -> bool:
        right = self.right == len(self.triggering) > 0
        return right and not any(self.others.values())


def main() -> None:
    arguments = _arguments()
    facts = machine()
    wanted = [bug for bug in BUGS if not arguments.only or bug.name in arguments.only]
    settings = Settings(record=arguments.record, max_world_size=arguments.max_world_size)
    with tempfile.TemporaryDirectory(prefix="trainsafe-bugs-") as temporary:
        session = Session(settings, Path(temporary))
        try:
            found = [judge(bug, session, arguments.quick) for bug in wanted]
        finally:
            session.close()
    report(found)
    if arguments.write:
        PAGE.write_text(page(found, facts), encoding="utf-8")
    figures = [
        {
            "bug": one.bug.name,
            "triggering": one.triggering,
            "others": one.others,
            "seconds": median(one.seconds),
        }
        for one in found
    ]
    finish("bugs", facts, {"record": arguments.record, "bugs": figures})
    sys.exit(not all(one.as_catalogued for one in found))


def judge(bug: Bug, session: Session, quick: bool) -> Found:
    """Judge a bug at its Points; a Point where no rank finishes counts as found nowhere."""
    found = Found(bug)
    for case in cases(bug, session.settings, quick):
        candidate = session.candidate(case)
        began = time.perf_counter()
        try:
            text = climb(candidate, session.reference(case), [], [])
        except GroupFailure as failure:
            text = f"starts at     {failure}"
        found.seconds.append(time.perf_counter() - began)
        session.discard(candidate)
        where = _line(text, "starts at") or ("something else" if text else "")
        point = str(case.point)
        (found.triggering if bug.triggers(case.point) else found.others)[point] = where
        if bug.triggers(case.point):
            found.patterns |= {_line(text, "pattern")} - {""}
            found.faulty |= {_line(text, "faulty")} - {""}
        print(f"{bug.name:28} {point:44} {where or 'passes'}", file=sys.stderr, flush=True)
    return found


def cases(bug: Bug, settings: Settings, quick: bool) -> Iterator[Case]:
    """The valid Points of a bug's program, those that trigger it and those that do not."""
    valid = planted(bug, settings)
    if quick:
        triggering = [case for case in valid if bug.triggers(case.point)]
        valid = [*triggering[:1], *(case for case in valid if not bug.triggers(case.point))][:2]
    yield from valid


def report(found: list[Found]) -> None:
    rows = [
        [
            one.bug.name,
            f"{one.right}/{len(one.triggering)}",
            f"{sum(not where for where in one.others.values())}/{len(one.others)}",
            f"{median(one.seconds):.2f}",
            "as catalogued" if one.as_catalogued else "NOT AS CATALOGUED",
        ]
        for one in found
    ]
    show("Planted bugs", ["", "found", "silent elsewhere", "s a Point", ""], rows)


def page(found: list[Found], facts: dict[str, object]) -> str:
    """docs/bugs.md."""
    rows = "\n".join(_row(one) for one in found)
    stories = "\n".join(_story(one) for one in found)
    return f"""# Planted bugs

Real bugs of training frameworks, each planted by its own mechanism in the reference models
(`reference_models/bugs/`), and what the compare judge says of them.
The numbers are those of TTrace, Table 1; WD is wrong data, WC wrong communication, MC missing
communication.

Written by `python benchmarks/bench_bugs.py --write` on {facts["cores"]} cores with torch
{facts["torch"]}; world size at most 4.
"Found" counts the Points that trigger the bug and fail there, starting at the tensor that the
catalogue expects; "silent" the Points that do not trigger it, and pass.

| TTrace | bug | kind | found | silent elsewhere | first wrong tensor | step | seconds a Point |
|---|---|---|---|---|---|---|---|
{rows}

{stories}"""


def _row(one: Found) -> str:
    bug = one.bug
    silent = sum(not where for where in one.others.values())
    return (
        f"| {bug.ttrace} | [{bug.name}](#{bug.name}) | {bug.category} "
        f"| {one.right} of {len(one.triggering)} | {silent} of {len(one.others)} "
        f"| `{one.expected}` | {bug.step if bug.step >= 0 else 'before the first'} "
        f"| {median(one.seconds):.1f} |"
    )


def _story(one: Found) -> str:
    bug = one.bug
    given = ", ".join(f"{name}={value!r}" for name, value in bug.arguments.items())
    told = [
        f"- Origin: <{bug.origin}>",
        f"- Program: `{bug.program}.train({given})`" if given else f"- Program: `{bug.program}`",
        f"- Acts where: {bug.when}",
        f"- Starts at: {_listed(set(one.triggering.values()))}",
    ]
    if one.patterns:
        told.append(f"- Pattern: {_listed(one.patterns)}")
    if one.faulty:
        told.append(f"- Localised to: {_listed(one.faulty)}")
    return f"## {bug.name}\n\n{bug.what}\n\n" + "\n".join(told) + "\n"


def _listed(texts: set[str]) -> str:
    return "; ".join(sorted(f"`{text}`" for text in texts if text)) or "nowhere"


def _line(text: str, label: str) -> str:
    """What a report says after a label."""
    found = re.search(rf"^\s*{label}\s+(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Two Points of each bug")
    parser.add_argument("--write", action="store_true", help=f"Write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="Some bugs")
    parser.add_argument("--record", choices=("sketch", "full"), default="full")
    parser.add_argument("--max-world-size", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
