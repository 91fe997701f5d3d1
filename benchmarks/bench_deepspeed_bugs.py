"""Judges silent bugs of old DeepSpeed releases, in these releases, and reports the verdicts.

Every bug of the catalogue must fail at the Point that triggers it, with the tensor that its entry
names as the first wrong one, and pass at the Point where it is silent. It is judged in its old
release, which is installed into a separate folder, and planted in the installed DeepSpeed.
`--mended` also judges the first release without the bug, at the Point that triggers it. `--write`
writes sections of docs/deepspeed-bugs.md and docs/bugs.md.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from _measure import ROOT, finish, machine, show
from _page import write_section

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.judges.joint_text import report_of
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.reference_models.deepspeed_bugs import BUGS, DeepSpeedBug
from pytest_trainsafe.reference_models.deepspeed_bugs.bug import Where
from pytest_trainsafe.reference_models.deepspeed_bugs.install import install
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import cells

PAGE = ROOT / "docs" / "deepspeed-bugs.md"
TABLE = ROOT / "docs" / "bugs.md"

INSTALLED = importlib.metadata.version("deepspeed")

#: Where releases are kept from one run to the next.
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "trainsafe-deepspeed"


@dataclass
class Shown:
    """The judge's reports on a bug in one release; the release "" means that it was planted.

    `triggering` and `silent` are the reports at the two Points of the bug, "" for a pass.
    """

    release: str
    triggering: str
    silent: str
    seconds: float

    @property
    def way(self) -> str:
        return self.release or "planted"


@dataclass
class Found:
    """The reports on one bug.

    `mended` is the report on the first release without the bug: "" if it passes, None if it was
    not judged.
    """

    bug: DeepSpeedBug
    shown: list[Shown] = field(default_factory=list)
    mended: str | None = None

    @property
    def expected(self) -> str:
        return f"{self.bug.tensor} · {self.bug.kind} · step {self.bug.step}"

    @property
    def as_catalogued(self) -> bool:
        starts = [_line(one.triggering, "starts at") for one in self.shown]
        found = bool(starts) and all(start.startswith(self.expected) for start in starts)
        return found and not any(one.silent for one in self.shown)


def main() -> None:
    arguments = _arguments()
    facts = machine() | {"deepspeed": INSTALLED}
    found = [Found(bug) for bug in BUGS if not arguments.only or bug.name in arguments.only]
    # Ranks are forked from a process that imports the modules which earlier ranks imported, among
    # them the installed DeepSpeed. So old releases come first, in a separate session.
    for judge in (judge_releases, judge_installed):
        settings = Settings(max_world_size=2, localize=0.0)
        with tempfile.TemporaryDirectory(prefix="trainsafe-deepspeed-") as temporary:
            session = Session(settings, Path(temporary))
            try:
                for one in found:
                    judge(one, session, arguments)
            finally:
                session.close()
    report(found)
    if arguments.write:
        write_section(PAGE, "silent", page(found, facts), "# Bugs of DeepSpeed\n")
        write_section(TABLE, "deepspeed", section(found, facts))
    figures = [
        {
            "bug": one.bug.name,
            "as_catalogued": one.as_catalogued,
            "mended": None if one.mended is None else not one.mended,
            "shown": {each.way: each.seconds for each in one.shown},
        }
        for one in found
    ]
    finish("deepspeed_bugs", facts, {"bugs": figures})
    sys.exit(not all(one.as_catalogued and not one.mended for one in found))


def judge_releases(one: Found, session: Session, arguments: argparse.Namespace) -> None:
    """Judge a bug in its old release and, if requested, the first release without it."""
    bug = one.bug
    if not bug.release:
        return
    folder = install(bug.release, arguments.releases)
    one.shown.append(shown(bug, bug.release, {"release": str(folder)}, session))
    if arguments.mended and bug.right != INSTALLED:
        newer = {"release": str(install(bug.right, arguments.releases))}
        one.mended = told(bug, newer, session)


def judge_installed(one: Found, session: Session, arguments: argparse.Namespace) -> None:
    """Judge a bug that is planted, and the installed release if it is the first without it."""
    if one.bug.planted:
        one.shown.append(shown(one.bug, "", {"bug": one.bug.name}, session))
    if arguments.mended and one.bug.right == INSTALLED:
        one.mended = told(one.bug, {}, session)


def told(bug: DeepSpeedBug, given: dict[str, str], session: Session) -> str:
    """The report of the first release without a bug, at the Point that triggered it."""
    found = said(bug, bug.triggers, given, session)
    print(f"{bug.name} {bug.right}: {found or 'passes'}", file=sys.stderr, flush=True)
    return found


def shown(bug: DeepSpeedBug, release: str, given: dict[str, str], session: Session) -> Shown:
    """Judges a bug at its two Points."""
    began = time.perf_counter()
    triggering = said(bug, bug.triggers, given, session)
    seconds = time.perf_counter() - began
    found = Shown(release, triggering, said(bug, bug.silent, given, session), seconds)
    where = _line(triggering, "starts at") or "PASSES"
    silent = _line(found.silent, "starts at") or found.silent or "passes"
    print(f"{bug.name} {found.way}: {where}; silent: {silent}", file=sys.stderr, flush=True)
    return found


def said(bug: DeepSpeedBug, where: Where, given: dict[str, str], session: Session) -> str:
    """The report of a bug's program at a Point, "" for a pass."""
    module = importlib.import_module(
        f"pytest_trainsafe.reference_models.deepspeed_bugs.programs.{bug.program}"
    )
    axes = {axis: [value] for axis, value in where.items()}
    declared = read_marker([module.train], {**axes, "candidate_args": given})
    (cell,) = cells(declared, session.settings, lambda *_: None)
    candidate = session.candidate(cell.case)
    try:
        return report_of(judge_case(candidate, session.reference(cell.case)))
    except GroupFailure as failure:
        return f"starts at     {failure}"
    finally:
        session.discard(candidate)


def report(found: list[Found]) -> None:
    rows = [
        [
            one.bug.name,
            ", ".join(each.way for each in one.shown),
            ", ".join(f"{each.seconds:.0f}" for each in one.shown),
            {None: "", "": f"{one.bug.right} passes"}.get(one.mended, f"{one.bug.right} FAILS"),
            "as catalogued" if one.as_catalogued else "NOT AS CATALOGUED",
        ]
        for one in found
    ]
    show("DeepSpeed's bugs", ["", "shown", "seconds", "mended", ""], rows)


def page(found: list[Found], facts: dict[str, object]) -> str:
    """The section of docs/deepspeed-bugs.md that this writes."""
    rows = "\n".join(_row(one) for one in found)
    stories = "\n".join(_story(one) for one in found)
    return f"""\
This section lists bugs that DeepSpeed had and corrected, none of which crashed a training.
Each is found by a comparison with plain PyTorch, most in the release that had the bug, with a \
recent torch.
Some are planted in the installed DeepSpeed too, in the code that the fix changed.

Written by `python benchmarks/bench_deepspeed_bugs.py --write`, two ranks on CPUs.
The installed DeepSpeed was {facts["deepspeed"]}, torch {facts["torch"]}.
"Right since" is the first release that was seen to pass, not always the first that has the fix.

| bug | area | wrong in | right since | shown in | Point | starts at |
|---|---|---|---|---|---|---|
{rows}

{stories}"""


def section(found: list[Found], facts: dict[str, object]) -> str:
    """The verdicts, for docs/bugs.md."""
    head = "bug|shown in|verdict|first wrong tensor|expected|where it is silent|seconds"
    rows = [
        (
            f"| [{one.bug.name}]({PAGE.name}#{one.bug.name}) | {each.way} "
            f"| {'fails' if each.triggering else 'PASSES'} "
            f"| `{_line(each.triggering, 'starts at') or 'nothing'}` | `{one.expected}` "
            f"| {'FAILS' if each.silent else 'passes'} | {each.seconds:.1f} |"
        )
        for one in found
        for each in one.shown
    ]
    right = sum(one.as_catalogued for one in found)
    lines = [
        "## The bugs of DeepSpeed",
        "",
        (
            "Bugs that DeepSpeed had and corrected, judged in the release that had them, or "
            f"planted in the installed release: {right} of {len(found)} are found where they "
            "should be."
        ),
        f"[{PAGE.name}]({PAGE.name}) describes them and what the reports say of them.",
        "",
        (
            f"Written by `python benchmarks/{Path(__file__).name} --write` on {facts['cores']} "
            f"cores, load {facts['load']} before, with torch {facts['torch']} and DeepSpeed "
            f"{facts['deepspeed']}, 2 ranks."
        ),
        (
            "Seconds are the time to the verdict, which for some bugs includes the run of the "
            "reference."
        ),
        "",
        f"| {head.replace('|', ' | ')} |",
        "|---" * (head.count("|") + 1) + "|",
        *rows,
    ]
    return "\n".join(lines)


def _row(one: Found) -> str:
    bug = one.bug
    ways = ", ".join(each.way for each in one.shown)
    starts = {_line(each.triggering, "starts at") for each in one.shown}
    told = "; ".join(sorted(f"`{text}`" for text in starts)) if one.as_catalogued else "not found"
    return (
        f"| [{bug.name}](#{bug.name}) | {bug.area} | {bug.wrong} | {bug.right} | {ways} "
        f"| {_point(bug.triggers)} | {told} |"
    )


def _story(one: Found) -> str:
    bug = one.bug
    lines = [
        f"- Upstream: <{bug.link}>",
        f"- Acts at: {_point(bug.triggers)}",
        f"- Silent at: {_point(bug.silent)}",
    ]
    for each in one.shown:
        error = _line(each.triggering, "error") or "in replicas alone"
        lines.append(f"- {each.way}: error {error}")
        lines += [
            f"- {each.way}, {label}: {words}"
            for label in ("pattern", "so")
            if (words := _told(each.triggering, label))
        ]
    return f"## {bug.name}\n\n{bug.what[0].upper()}{bug.what[1:]}.\n\n" + "\n".join(lines) + "\n"


def _point(where: Where) -> str:
    return "`" + " ".join(f"{axis}={value}" for axis, value in where.items()) + "`"


def _line(text: str, label: str) -> str:
    """The text of a report after a label, on the same line; "" if there is none."""
    found = re.search(rf"^\s*{label}\s+(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _told(text: str, label: str) -> str:
    """The text of a report after a label, with its continuation lines; "" if there is none."""
    found = re.search(rf"^  {label} +(.+(?:\n {{16}}\S.*)*)", text, re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="Judge only these bugs")
    pages = " and ".join(str(each.relative_to(ROOT)) for each in (PAGE, TABLE))
    parser.add_argument("--write", action="store_true", help=f"Write {pages}")
    parser.add_argument("--mended", action="store_true", help="Also judge the first right release")
    parser.add_argument(
        "--releases", type=Path, default=CACHE, help=f"The folder of releases (default {CACHE})"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
