"""Measures the page of `--trainsafe-report`: its size, and the seconds to make and to open it.

A real run of a small program, clean and with a bug, gives the Sections of its Points and what they
cost.  These Points are then repeated up to 500, which have more than 20 000 tensors, and their page
is written and opened in Chromium.  The targets are less than 20 MB, at most 3 % of the run's time,
and less than 3 s until the page shows what it was asked for.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import msgspec
from _measure import ROOT, finish, machine, median, quick, show

sys.path.insert(0, str(ROOT))

from pytest_trainsafe.report.html.document import Document, Entry, read_document
from pytest_trainsafe.report.html.write import write_page
from tests.support.exact.proved_program import PROGRAM
from tests.support.report.browser import Look, chromium

POINTS, TENSORS = 500, 20_000
MOST_MB, MOST_SHARE, MOST_SECONDS = 20, 0.03, 3

TESTS = """
import pytest
from pytest_trainsafe import assert_trainsafe


@pytest.mark.parametrize("again", range({count}))
@pytest.mark.trainsafe("proved:train", tp=[1, 2, 4], dtype=["float64"])
def test_clean(candidate_trace, reference_trace, again):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    "proved:train", tp=[2, 4], dtype=["float64"], candidate_args={{"bug": "unreduced"}}
)
def test_wrong(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""

#: Sums the CPU seconds of everything that a run does for its page.
PROBE = """
import json, time

SPENT = {"judge": 0.0, "attach": 0.0}

def timed(module, name, what):
    inner = getattr(module, name)
    def outer(*given, **named):
        began = time.process_time()
        try:
            return inner(*given, **named)
        finally:
            SPENT[what] += time.process_time() - began
    setattr(module, name, outer)

def pytest_configure(config):
    import pytest_trainsafe.judges.compare.explain.pictures as pictures
    import pytest_trainsafe.judges.sections as sections
    import pytest_trainsafe.report.html.shown as shown
    timed(sections, "show_joint", "judge")
    timed(pictures, "pictures_of", "judge")
    timed(shown, "attach_sections", "attach")

def pytest_unconfigure(config):
    open("spent.json", "w").write(json.dumps(SPENT))
"""


def main() -> None:
    asked = quick(__doc__)
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="trainsafe-report-") as temporary:
        folder = Path(temporary)
        document, spent, judged = real_run(folder, 2 if asked else 8)
        count = len(document.entries)
        big = repeated(document, POINTS)
        tensors = sum(sum(entry.outcome.tensors) for entry in big.entries)
        assert len(big.entries) == POINTS
        assert tensors >= TENSORS, tensors
        write, size = [], 0
        for _ in range(1 if asked else 3):
            began = time.process_time()
            page = write_page(big, folder / "page")
            write.append(time.process_time() - began)
            size = page.stat().st_size
        opened = [open_page(page, big) for _ in range(1 if asked else 5)]
    making = sum(spent.values()) / count * POINTS
    run = judged / count * POINTS
    share = (making + median(write)) / run
    first, point = (median([each[i] for each in opened]) for i in (0, 1))
    rows: list[list[object]] = [
        ["Points", POINTS, ""],
        ["tensors", tensors, ""],
        ["size of the page, MB", f"{size / 1e6:.1f}", f"< {MOST_MB}"],
        ["making panels, CPU s", f"{making:.2f}", ""],
        ["writing the page, CPU s", f"{median(write):.2f}", ""],
        ["the run, CPU s", f"{run:.0f}", ""],
        ["share of the run, %", f"{100 * share:.2f}", f"<= {100 * MOST_SHARE:.0f}"],
        ["until the page is shown, s", f"{first:.2f}", f"< {MOST_SECONDS}"],
        ["until a Point is shown, s", f"{point:.2f}", f"< {MOST_SECONDS}"],
    ]
    show(f"The page of {POINTS} Points", ["", "measured", "target"], rows)
    finish(
        "report",
        facts,
        {
            "points": POINTS,
            "tensors": tensors,
            "megabytes": size / 1e6,
            "making_seconds": making,
            "writing_seconds": median(write),
            "run_seconds": run,
            "share": share,
            "open_seconds": first,
            "point_seconds": point,
            "met": size < MOST_MB * 1e6 and share <= MOST_SHARE and first < MOST_SECONDS,
        },
    )


def real_run(folder: Path, count: int) -> tuple[Document, dict[str, float], float]:
    """The Document of a real run, and the CPU seconds that it spent on its page and in all.

    Seconds of the CPU, because a machine with other work makes a run longer and its page not.
    """
    (folder / "proved.py").write_text(PROGRAM)
    (folder / "test_small.py").write_text(TESTS.format(count=count))
    (folder / "conftest.py").write_text(PROBE)
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    options = ("-q", "-p", "no:hypothesispytest", "-p", "no:syrupy", "--trainsafe-localize=off")
    command = [sys.executable, "-m", "pytest", *options, "--trainsafe-report=out"]
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    before = _cpu_of_children()
    done = subprocess.run(
        command, cwd=folder, env=kept, capture_output=True, text=True, check=False
    )
    if done.returncode != 1:  # the tests with the bug fail
        raise SystemExit(done.stdout[-4000:] + done.stderr)
    spent: dict[str, float] = json.loads((folder / "spent.json").read_text())
    return read_document(folder / "out"), spent, _cpu_of_children() - before


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def repeated(document: Document, points: int) -> Document:
    """A Document with the entries of another one again and again, under other names."""
    entries: list[Entry] = []
    while len(entries) < points:
        for entry in document.entries[: points - len(entries)]:
            number = len(entries)
            outcome = replace(
                entry.outcome,
                nodeid=f"{entry.outcome.nodeid[:-1]}-{number}]",
                point=f"{entry.outcome.point} number={number}",
                axes=(*entry.outcome.axes, ("number", str(number))),
            )
            entries.append(msgspec.structs.replace(entry, outcome=outcome))
    return Document(runs=document.runs, entries=tuple(entries))


def open_page(path: Path, document: Document) -> tuple[float, float]:
    """The seconds until a new browser shows the page, and then until it shows a failing Point."""
    failing = next(e.outcome.nodeid for e in document.entries if e.outcome.verdict == "fail")
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1360, "height": 900})
        began = time.perf_counter()
        look = Look(page, path)
        page.locator(".matrix").wait_for()
        shown = time.perf_counter()
        look.point(failing)
        page.locator(".dataflow").first.wait_for()
        assert not look.errors, look.errors
        return shown - began, time.perf_counter() - shown


if __name__ == "__main__":
    main()
