"""Writes proposed annotations to a file, at the user's request (--trainsafe-annotate).

Called by `judges/compare/ladder/ladder.py` after a comparison failed.  The test that needs the
annotations still fails in this run, and the failure message names the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.annotations.entries import AnnotationError, Entries
from pytest_trainsafe.annotations.extend import extend
from pytest_trainsafe.annotations.text import read_text

#: The suffix of an annotation file that is created next to a test.
SUFFIX = ".annotations.yaml"


def write_annotations(
    patch: Mapping[str, Any], file: str, nodeid: str, root: str, model: str = ""
) -> str:
    """Adds the missing entries of `patch` to the file that the program read, or to a new one.

    `file` is the file that the program read, "" for none; if it cannot be written, or there is
    none, the entries are added to a file next to the test.  `model` is the model whose annotations
    were read, in a file with several.  `nodeid` is the test's id, relative to the folder `root`.
    Returns a clause that says what was done with the annotations ("they were added to ...").
    """
    path = Path(file)
    if not file or not os.access(path, os.W_OK) or "site-packages" in path.parts:
        test = Path(root) / (nodeid.partition("::")[0] or "test_trainsafe.py")
        path, model = test.with_name(test.stem + SUFFIX), ""
    shown = os.path.relpath(path)
    shown = shown if len(shown) < len(str(path)) else str(path)
    try:
        with _alone(path.parent):
            old = read_text(path) if path.exists() else ""
            before = Annotations.of_text(old, str(path), model)  # `extend` requires valid text
            new = extend(old, {"models": {model: patch}} if model else patch)
            if new == old:
                return f"they are already in {shown}{_how(path, file)}"
            _check(new, before.entries, path, model)
            partial = path.with_name(path.name + ".partial")
            partial.write_text(new, encoding="utf-8")
            partial.replace(path)
    except (OSError, AnnotationError) as error:
        return f"they could not be written to {shown} ({error}); add them by hand"
    return f"they were {'added to' if old else 'written to'} {shown}{_how(path, file)}"


def _how(path: Path, file: str) -> str:
    if file and path == Path(file):
        return ""
    why = " (the program's own file is not writable)" if file else ""
    return f"{why}: pass this file to ctx.watch as annotations=, or copy its entries to your file"


def _check(new: str, before: Entries, path: Path, model: str) -> None:
    """Raises AnnotationError unless the new text is valid and keeps the entries of `before`."""
    after = Annotations.of_text(new, str(path), model).entries
    kept = {p for p, _ in before.parameters} <= {p for p, _ in after.parameters}
    kept &= {p for p, _ in before.modules} <= {p for p, _ in after.modules}
    if not kept or (before.cp_order and before.cp_order != after.cp_order):
        raise AnnotationError(
            f"{path}: inserting the proposed entries would change entries that the file already has"
        )


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Excludes other processes of this machine from writing annotations into the folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
