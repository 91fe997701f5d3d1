"""Reads the reports of marked tests from JUnit files, to report all shards of a run together.

A shard has only its own Points, so it cannot find the axis values that all Points with one cause
have and no passing Point has. The files may come from jobs that ran untrusted code.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from pytest_trainsafe.core.untrusted import BadFileError, read_file
from pytest_trainsafe.core.usage import excerpt, shown
from pytest_trainsafe.errors import SettingError
from pytest_trainsafe.sweep.point_summary import PROPERTY
from pytest_trainsafe.sweep.signature import MARKER

#: The maximum size of a file in bytes.
MAX_BYTES = 2**28


@dataclass(frozen=True, slots=True)
class JUnitReport:
    """A test in a JUnit file, with the attributes of pytest's report that Outcomes need."""

    nodeid: str
    outcome: str
    duration: float
    location: tuple[str, int | None, str]
    user_properties: list[tuple[str, object]]
    longreprtext: str
    when: str = "call"
    longrepr: None = None
    keywords: dict[str, int] = field(default_factory=lambda: {MARKER: 1})


def read_junit(path: Path, root: Path) -> list[JUnitReport]:
    """The tests of a JUnit file that have the property with which pytest-trainsafe marks its tests.

    Paths below the root directory of the run that wrote the file become paths below `root`.
    Raises SettingError, which names the file, if it cannot be read.
    """
    try:
        data = read_file(path, max_bytes=MAX_BYTES)
        # pytest declares no entities, whose expansion could fill the memory, and writes UTF-8; in
        # UTF-16 a declaration would have other bytes.
        if b"<!" in data.replace(b"<![CDATA[", b"") or b"\0" in data:
            raise SettingError(
                f"{shown(str(path))} has an XML declaration that pytest does not write; pass "
                "files that pytest --junitxml has written"
            )
        tree = ElementTree.fromstring(data)
    except BadFileError as error:
        raise SettingError(
            f"{shown(str(path))} cannot be read: {error.strerror}; pass files that pytest "
            "--junitxml has written"
        ) from None
    except OSError as error:
        reason = excerpt(str(error.strerror))
        raise SettingError(
            f"{shown(str(path))} cannot be read: {reason}; pass files that pytest --junitxml has "
            "written"
        ) from None
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError) as error:
        if isinstance(error, SettingError):
            raise
        reason = excerpt(str(error), 200)
        raise SettingError(
            f"{shown(str(path))} is not a JUnit file: {reason}; pass files that pytest --junitxml "
            "has written"
        ) from None
    return list(_tests(tree, root))


def _tests(tree: ElementTree.Element, root: Path) -> Iterator[JUnitReport]:
    for case in tree.iter("testcase"):
        properties = [
            (each.get("name", ""), each.get("value", "")) for each in case.iter("property")
        ]
        values = dict(properties)
        nodeid = values.get(f"{PROPERTY}_id")
        if nodeid is None:
            continue
        before = values.get(f"{PROPERTY}_root", "")
        if len(before) > 1:
            # In JSON and in text a path is the same, unless it has characters that JSON escapes.
            old, new = before + os.sep, f"{root}{os.sep}"
            properties = [(name, value.replace(old, new)) for name, value in properties]
        failed = next((e for e in case if e.tag in ("failure", "error")), None)
        skipped = case.find("skipped") is not None
        file, _, line = values.get(f"{PROPERTY}_location", "").rpartition(":")
        number = int(line) - 1 if line.isdecimal() and 0 < len(line) < 10 else None
        yield JUnitReport(
            nodeid,
            "failed" if failed is not None else "skipped" if skipped else "passed",
            _seconds(case.get("time", "")),
            (file, number, case.get("name", "")),
            list(properties),
            failed.get("message", "") if failed is not None else "",
        )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds >= 0 else 0.0
