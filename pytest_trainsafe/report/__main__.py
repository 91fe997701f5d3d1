"""`python -m pytest_trainsafe.report FILE...`: writes one GitHub Actions report for several shards.

Takes the JUnit files of all shards. Prints the annotations, and appends the summary to the file
that GITHUB_STEP_SUMMARY names, or prints it if that is not set.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pytest_trainsafe.errors import SettingError
from pytest_trainsafe.report.run.families import families
from pytest_trainsafe.report.run.github import append_summary, error_commands, job_summary
from pytest_trainsafe.report.run.junit import read_junit
from pytest_trainsafe.report.run.outcome import outcomes


def main(arguments: list[str] | None = None) -> int:
    """Writes the report and returns the exit status: 2 if a file cannot be read, otherwise 0.

    Files that cannot be read are named on stderr and left out of the report.
    """
    parser = argparse.ArgumentParser(
        prog="python -m pytest_trainsafe.report",
        description="Write one report for GitHub Actions from the JUnit files of several shards.",
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--root", type=Path, default=Path(), help="The root directory of the tests")
    given = parser.parse_args(arguments)
    root = given.root.absolute()
    workspace = Path(os.environ.get("GITHUB_WORKSPACE") or root)
    reports, status = [], 0
    for path in given.files:
        try:
            reports += read_junit(path, root)
        except SettingError as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            status = 2
    found = outcomes(reports)
    causes = families(found)
    for line in error_commands(causes, root, workspace):
        print(line)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        append_summary(Path(summary), found, causes, workspace)
    else:
        print(job_summary(found, causes, workspace))
    return status


if __name__ == "__main__":
    sys.exit(main())
