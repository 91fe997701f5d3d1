"""`python -m pytest_trainsafe report merge DIR...`: one page of the pages of several shards."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

from pytest_trainsafe.errors import SettingError
from pytest_trainsafe.report.html.document import Document, merged, read_document
from pytest_trainsafe.report.html.extra import require_extra


def main(arguments: list[str]) -> int:
    """Writes the page and returns the exit status: 2 if a directory cannot be read, otherwise 0.

    Directories that cannot be read are named on stderr and left out of the page.
    """
    parser = argparse.ArgumentParser(
        prog="python -m pytest_trainsafe report",
        description="Work with the pages that --trainsafe-report writes.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    merge = commands.add_parser("merge", help="Write one page of the pages of several shards")
    merge.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    merge.add_argument(
        "--output",
        type=Path,
        default=Path("trainsafe-report"),
        metavar="DIR",
        help="The directory of the page (default trainsafe-report)",
    )
    given = parser.parse_args(arguments)
    try:
        require_extra()
    except pytest.UsageError as error:
        parser.error(str(error))
    documents: list[Document] = []
    status = 0
    for folder in given.folders:
        try:
            documents.append(read_document(folder))
        except SettingError as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            status = 2
    if not documents:
        return 2
    from pytest_trainsafe.report.html.write import write_page

    print(f"page: {os.path.relpath(write_page(merged(documents), given.output))}")
    return status
