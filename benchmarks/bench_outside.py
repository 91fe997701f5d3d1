"""Judges ten programs as public projects have them, clean and with three planted faults each.

The clean programs must pass at default settings.  For each fault, the table shows the verdict, the
first wrong tensor and what the report looks at; the comment `# fault: NAME` marks the line at fault
in the program.  Whether a report names the call, line or module at fault is judged by a reader, and
docs/sensitivity.md has the result.

    python benchmarks/bench_outside.py
    python benchmarks/bench_outside.py --only outside_ddp --reports FOLDER
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from _measure import finish, machine, show
from _trials import Trial, judged

FOLDER = Path(__file__).with_name("outside_programs")
sys.path.insert(0, str(FOLDER))

from outside_cases import CASES  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="MODULE")
    parser.add_argument("--clean", action="store_true", help="Only the clean programs")
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="Write each report here")
    asked = parser.parse_args()
    facts = machine()
    trials = [
        Trial(case.module, f"{case.module}:train", case.point, fault, localize=60.0)
        for case in CASES
        if not asked.only or case.module in asked.only
        for fault in ("", *(() if asked.clean else case.faults))
    ]
    lines = _lines()
    rows, table = [], []
    for row in judged(trials):
        row["expected"] = "fail" if row["fault"] else "pass"
        row["line"] = lines.get((row["trial"], row["fault"]), "")
        rows.append(row)
        starts = [each for each in row["report"].splitlines() if "starts at" in each]
        table.append(
            [
                row["trial"].removeprefix("outside_"),
                row["fault"] or "clean",
                row["verdict"],
                row["line"],
                Path(row.get("look_at") or "-").name,
                starts[0].partition("starts at")[2].strip() if starts else "",
            ]
        )
        print(*table[-1], sep=" | ", flush=True)
        if asked.reports:
            asked.reports.mkdir(parents=True, exist_ok=True)
            name = f"{row['trial']}-{row['fault'] or 'clean'}.txt"
            (asked.reports / name).write_text(row["report"])
    columns = ["", "fault", "verdict", "at", "look at", "starts at"]
    show("Programs as public projects have them", columns, table)
    wrong = [row["trial"] + " " + row["fault"] for row in rows if row["verdict"] != row["expected"]]
    finish("outside", facts, {"judged": len(rows), "wrong": wrong})
    sys.exit(bool(wrong))


def _lines() -> dict[tuple[str, str], str]:
    """The line at fault of each fault, as file:line."""
    found = {}
    for file in FOLDER.glob("outside_*.py"):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            _, marked, fault = line.partition("# fault: ")
            if marked:
                found[file.stem, fault.strip()] = f"{file.name}:{number}"
    return found


if __name__ == "__main__":
    main()
