"""Judges every planted bug at its Points, and writes the verdicts into docs/bugs.md.

A bug of the catalogue must fail at every Point that triggers it, with the tensor that its entry
names as the first wrong one, and pass at all other Points. At the first Point that triggers it, the
code at fault is localised, and must be the code that the entry names. `--only NAME` judges some
bugs, `--quick` judges two Points of each bug, `--write` writes the page's section, and `--record
sketch` records sketches (random projections) instead of whole tensors at first.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from _measure import ROOT, finish, machine, median, show
from _page import write_section
from _rungs import session

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.judges.joint_text import report_of
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.reference_models.bugs import BUGS, OF_DEEPSEEK, Bug
from pytest_trainsafe.reference_models.corpus import planted
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.point_summary import PointSummary

PAGE = ROOT / "docs" / "bugs.md"

HEAD = """# Bugs

This page lists real bugs of training frameworks that were planted or run in the release that had \
them, and what pytest-trainsafe reports of each.
The benchmark that a section names writes the section.
"""


#: The catalogues by the name of their section of the page, and the titles of these sections.
CATALOGUES = {"ttrace": BUGS, "deepseek": OF_DEEPSEEK}
TITLES = {
    "ttrace": "The bugs of TTrace, Table 1",
    "deepseek": "Bugs of latent attention, shared experts, biased routers and further tokens",
}

#: By what mechanism the bugs of a catalogue are planted.
MECHANISMS = {
    "ttrace": "its original mechanism",
    "deepseek": "the mechanism of its origin, or a similar one, as its description says",
}


@dataclass
class Found:
    """The verdicts on one bug.

    `triggering` and `others` map Points that trigger the bug, and Points that do not, to the first
    wrong tensor, "" for a pass. `seconds` are those of each Point. `first` is the Point at which
    the bug was localised, in `localizing` seconds, to `faults`.
    """

    bug: Bug
    triggering: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    judges: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)
    seconds: list[float] = field(default_factory=list)
    first: str = ""
    faults: list[tuple[str, str]] = field(default_factory=list)
    localizing: float = 0.0

    @property
    def expected(self) -> str:
        """The beginning of the report's first line."""
        path = f"{self.bug.module}.{self.bug.tensor}" if self.bug.module else self.bug.tensor
        return f"{path} · {self.bug.kind}"

    @property
    def right(self) -> int:
        """The number of triggering Points whose report starts at the tensor of the entry."""
        return sum(where.startswith(self.expected) for where in self.triggering.values())

    @property
    def localised(self) -> bool:
        return self.bug.localised(self.faults)

    @property
    def as_catalogued(self) -> bool:
        right = self.right == len(self.triggering) > 0
        return right and self.localised and not any(self.others.values())


def main() -> None:
    arguments = _arguments()
    facts = machine()
    catalogue = [bug for bugs in CATALOGUES.values() for bug in bugs]
    wanted = [bug for bug in catalogue if not arguments.only or bug.name in arguments.only]
    settings = Settings(
        record=arguments.record, max_world_size=arguments.max_world_size, localize=24 * 3600
    )
    with session(settings) as opened:
        found = [judge(bug, opened, arguments.quick) for bug in wanted]
    report(found)
    for name, bugs in CATALOGUES.items() if arguments.write else ():
        of_it = [one for one in found if one.bug in bugs]
        if of_it:
            text = section(name, of_it, facts, settings.max_world_size)
            write_section(PAGE, name, text, HEAD)
    figures = [
        {
            "bug": one.bug.name,
            "triggering": one.triggering,
            "others": one.others,
            "seconds": median(one.seconds),
            "localised_at": one.first,
            "localize_s": one.localizing,
            "faults": one.faults,
        }
        for one in found
    ]
    finish("bugs", facts, {"record": arguments.record, "bugs": figures})
    sys.exit(not all(one.as_catalogued for one in found))


def judge(bug: Bug, opened: Session, quick: bool) -> Found:
    """Judge a bug at its Points."""
    found = Found(bug)
    for case in cases(bug, opened.settings, quick):
        acts, point = bug.triggers(case.point), str(case.point)
        localize = acts and not found.first
        if not localize:
            case = replace(case, settings=case.settings._replace(localize=0.0))
        where, seconds, summary = verdict(case, opened)
        (found.triggering if acts else found.others)[point] = where
        spent = summary.get("seconds", {}).get("localize", 0.0)
        found.seconds.append(seconds - spent)
        if acts and (first := summary.get("first")) is not None:
            found.judges.add(first["judge"])
            found.patterns |= {first["pattern"]} - {""}
        if localize:
            found.first, found.localizing = point, spent
            found.faults = summary.get("faults", [])
        print(f"{bug.name:28} {point:44} {where or 'passes'}", file=sys.stderr, flush=True)
    return found


def verdict(case: Case, opened: Session) -> tuple[str, float, PointSummary]:
    """The first wrong tensor of a Point, "" for a pass; the seconds; the published summary.

    If ranks do not finish, the first line of the failure replaces the tensor.
    """
    candidate = opened.candidate(case)
    published: list[PointSummary] = []
    candidate.runs.publish = published.append
    began = time.perf_counter()
    try:
        text = report_of(judge_case(candidate, opened.reference(case)))
        where = "something else" if text else ""
    except GroupFailure as failure:
        where = str(failure).partition("\n")[0]
    seconds = time.perf_counter() - began
    opened.discard(candidate)
    summary: PointSummary = published[0] if published else {"point": "", "verdict": "fail"}
    first = summary.get("first")
    return first["where"] if first and first["where"] else where, seconds, summary


def cases(bug: Bug, settings: Settings, quick: bool) -> Iterator[Case]:
    """The Cases at the valid Points of a bug's program, whether they trigger it or not."""
    valid = list(planted(bug, settings))
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
            _fault(one),
            f"{one.localizing:.2f}",
            "as catalogued" if one.as_catalogued else "NOT AS CATALOGUED",
        ]
        for one in found
    ]
    columns = ["", "found", "silent elsewhere", "s a Point", "localised to", "in s", ""]
    show("Planted bugs", columns, rows)
    right = sum(one.localised for one in found)
    print(f"  {right} of {len(found)} localised to the right module and phase.")


def section(name: str, found: list[Found], facts: dict[str, object], most: int) -> str:
    """One section of the page."""
    judged = sum(len(one.triggering) + len(one.others) for one in found)
    right = sum(one.localised for one in found)
    columns = "TTrace|bug|kind|fails|silent|judge|first wrong tensor|step|localised to|seconds|from"
    lines = [
        f"## {TITLES[name]}",
        "",
        (
            f"Each bug is planted in the reference models by {MECHANISMS[name]} "
            "(`reference_models/bugs/`), and judged at Points that trigger it and at Points that "
            "do not."
        ),
        (
            'In the column "kind", WD is wrong data, WC wrong communication, and MC missing '
            "communication."
        ),
        "",
        (
            f"Written by `python benchmarks/bench_bugs.py {' '.join(sys.argv[1:])}` on "
            f"{facts['cores']} cores with torch {facts['torch']}: {judged} Points, world size "
            f"at most {most}."
        ),
        (
            '"Fails" counts the Points that trigger the bug and whose report starts at the tensor '
            'that the catalogue expects; "silent" counts the Points that do not trigger it and '
            "pass."
        ),
        (
            "The code at fault is located at the first Point that triggers a bug: "
            f"{right} of {len(found)} are localised to the right module and phase."
        ),
        ("Seconds are the time to a Point's verdict (median) plus the time of the localisation."),
        "",
        f"| {columns.replace('|', ' | ')} |",
        "|---" * (columns.count("|") + 1) + "|",
        *(_row(one) for one in found),
        "",
        *(_story(one) for one in found),
    ]
    return "\n".join(lines)


def _row(one: Found) -> str:
    bug = one.bug
    silent = sum(not where for where in one.others.values())
    where = set(one.triggering.values())
    as_expected = all(each.startswith(one.expected) for each in where)
    told = f"`{one.expected}`" if as_expected else f"{_listed(where)}, expected `{one.expected}`"
    return (
        f"| {bug.ttrace or '-'} | [{bug.name}](#{bug.name}) | {bug.category} "
        f"| {one.right} of {len(one.triggering)} | {silent} of {len(one.others)} "
        f"| {', '.join(sorted(one.judges))} "
        f"| {told} | {bug.step if bug.step >= 0 else 'before the first'} "
        f"| {_fault(one)} | {median(one.seconds):.1f} + {one.localizing:.1f} "
        f"| [{_short(bug.origin)}]({bug.origin}) |"
    )


def _fault(one: Found) -> str:
    """The phase and the modules or parameters at fault, as the catalogue's patterns count them."""
    if not one.faults:
        return "nothing"
    names = list(dict.fromkeys(name for _, name in one.faults))
    phases = "/".join(dict.fromkeys(phase for phase, _ in one.faults))
    what = f"`{names[0]}`" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    return f"{phases} of {what}"


def _short(origin: str) -> str:
    """The short name of a thread's address, such as `Megatron-LM#673`."""
    *_, project, _, number = origin.split("/")
    return f"{project}#{number}"


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
    faults = {f"{phase}: {name}" for phase, name in one.faults}
    told.append(f"- Localised at `{one.first}` to: {_listed(faults)}")
    return f"### {bug.name}\n\n{bug.what}\n\n" + "\n".join(told) + "\n"


#: The most names in a list on the page.
MAX_LISTED = 6


def _listed(texts: set[str]) -> str:
    named = sorted(f"`{text}`" for text in texts if text)
    more = f"; and {len(named) - MAX_LISTED} more" if len(named) > MAX_LISTED else ""
    return ("; ".join(named[:MAX_LISTED]) or "nowhere") + more


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Two Points of each bug")
    section = f"Write the section of {PAGE.relative_to(ROOT)}"
    parser.add_argument("--write", action="store_true", help=section)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="Judge only these bugs")
    parser.add_argument("--record", choices=("sketch", "full"), default="full")
    parser.add_argument("--max-world-size", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
