"""Makes the annotation file that a program names and that does not exist (--trainsafe-annotate)."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_trainsafe.annotations.missing import HEAD, absent_file
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.runs.traces import Runs


def made_file(failure: GroupFailure, runs: Runs) -> Path | None:
    """The missing file that ended a Run, and that exists now; None if the Run ended otherwise.

    It is made without entries, and the summary of the run has a note of it.
    """
    ranks = failure.result.ranks
    path = next(filter(None, (absent_file(each.error_type, each.error) for each in ranks)), None)
    if path is None or not runs.candidate.case.settings.annotate:
        return None
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(HEAD)
    except FileExistsError:  # an earlier test, or another worker, made it
        return path
    except OSError:
        return None
    runs.candidate.runs.notes[f"{os.path.relpath(path)} did not exist, and was made"] = None
    return path
