"""Runs the silent errors of one process, healthy and faulty, and writes a section of docs/bugs.md.

Prints the last loss of both variants, which is what a user sees, and the seconds of both runs.
`--write` writes the page's section from the catalogue.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch
from _measure import ROOT, finish, machine, show
from _page import write_section

from pytest_trainsafe.reference_models import silent_errors
from pytest_trainsafe.reference_models.silent_errors import ERRORS, NEW, REPRODUCED, SilentError

PAGE = ROOT / "docs" / "bugs.md"

TEXT = (
    "## Silent errors\n\n"
    "These are the errors that TrainCheck (Jiang et al., OSDI 2025) was evaluated on, re-created "
    "from their public descriptions as small programs (`reference_models/silent_errors/`).\n"
    "One switch of each program selects its healthy or its faulty variant.\n"
    "The faulty part of a framework or machine is a subclass of the same part of a small library "
    "(`reference_models/toolkit/`), so both variants call functions of the same names.\n"
    "Tests check the consequence of each error, not only its loss.\n"
    "`reference_models/healthy/` has forty-two correct programs in four classes, none of them the "
    "healthy variant of an error.\n\n"
    '"Trigger" is when the root cause acts: in a step, before the first step (start) or after the '
    "last (end).\n"
    '"Judges" are those that are expected to find the error, the best first; "launch" is the '
    "comparison of the ranks' collectives, which is made for every group of ranks.\n"
    "The last table of this page has the results of the learn judge.\n\n"
    "Written by `python benchmarks/bench_silent_errors.py --write` from the catalogue.\n"
)


def table(errors: Sequence[SilentError]) -> str:
    """The rows of one of the paper's tables."""
    lines = [
        "| error | TrainCheck | what goes wrong | cause in | trigger | named by | ranks | judges |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for error in errors:
        causes = ", ".join(f"`{each}`" for each in error.causes)
        cells = (
            f"[{error.name}]({error.sources[0]})",
            error.number or "Table 5",
            error.what,
            error.place,
            f"step {error.trigger}" if isinstance(error.trigger, int) else error.trigger,
            causes,
            f"2 ({error.axis})" if error.axis else "1",
            ", ".join(error.judges),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the errors of one process, print the table, and write the section if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Run only the first five")
    parser.add_argument("--write", action="store_true", help="Write the section of docs/bugs.md")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    facts = machine()
    alone = [error for error in ERRORS if not error.axis]
    rows, seconds = [], {}
    for error in alone[:5] if asked.quick else alone:
        train, last, times = silent_errors.program(error), {}, {}
        for faulty in (False, True):
            began = time.process_time()
            try:
                last[faulty] = f"{train(faulty=faulty).losses[-1]:.3f}"
            except KeyError:
                last[faulty] = "KeyError"
            times[faulty] = time.process_time() - began
        seconds[error.name] = times[False] + times[True]
        rows.append(
            (error.name, last[False], last[True], f"{times[False]:.2f}", f"{times[True]:.2f}")
        )
    columns = ("error", "last loss, healthy", "faulty", "seconds, healthy", "faulty")
    show("Silent errors of one process", columns, rows)
    if asked.write:
        new = "### Errors that were unknown when TrainCheck found them"
        write_section(PAGE, "silent", f"{TEXT}\n{table(REPRODUCED)}\n\n{new}\n\n{table(NEW)}\n")
    finish("silent_errors", facts, {"seconds": seconds})


if __name__ == "__main__":
    main()
