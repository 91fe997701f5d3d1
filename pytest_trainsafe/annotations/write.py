"""Writes proposed annotations to a file, where the user asks for it with --trainsafe-annotate.

Called by the ladder.  Like a snapshot: the test that lacked them fails once more, and says where
they are.
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

#: The end of the name of a file that is made beside a test.
SUFFIX = ".annotations.yaml"


def write_annotations(
    wanted: Mapping[str, Any], file: str, nodeid: str, root: str, model: str = ""
) -> str:
    """Add what is missing of `wanted` to the file the program read, else to one beside the test.

    `file` is "" where the program read none, and `model` the one of several in it that was read;
    `nodeid` is below `root`.  Returns what was done, in a sentence.
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
            before = Annotations.of_text(old, str(path), model)  # `extend` takes valid text only
            new = extend(old, {"models": {model: wanted}} if model else wanted)
            if new == old:
                return f"{shown} has them already{_how(path, file)}"
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
    why = " (what the program read cannot be written)" if file else ""
    return f"{why}: give ctx.watch this file as annotations=, or what it adds to yours"


def _check(new: str, before: Entries, path: Path, model: str) -> None:
    """Raise AnnotationError unless the new text is valid and still says what `before` did."""
    after = Annotations.of_text(new, str(path), model).entries
    kept = {p for p, _ in before.parameters} <= {p for p, _ in after.parameters}
    kept &= {p for p, _ in before.modules} <= {p for p, _ in after.modules}
    if not kept or (before.cp_order and before.cp_order != after.cp_order):
        raise AnnotationError("it is written in a way that nothing can be added to safely")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other test of this machine writes annotations into the folder meanwhile."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
