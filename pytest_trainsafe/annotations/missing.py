"""An annotation file that a program names and that does not exist: what errors say, and making it.

A file with a similar name beside it shows that the name is misspelt; then nothing is made.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pytest_trainsafe.annotations.entries import MissingFileError
from pytest_trainsafe.core.pages import page
from pytest_trainsafe.core.usage import excerpt, nearest

#: The first line of an annotation file that is made.
HEAD = f"# Which part of a tensor each rank holds: {page('layouts.md')}\n"

_SAID = "annotations cannot be read: there is no such file"
_ABSENT = re.compile(rf"(/.+): {_SAID}\. ")  # and not "; did you mean"

_MAX_PATH = 4096


def absent(path: Path) -> MissingFileError:
    """The error of a path at which there is no file."""
    said = f"{excerpt(str(path.absolute()), _MAX_PATH)}: {_SAID}"
    if not path.absolute().parent.is_dir():
        return MissingFileError(f"{said}, and no folder {excerpt(str(path.absolute().parent))}")
    if hint := nearest(path.name, _beside(path)):
        return MissingFileError(
            f"{said}{hint} If you mean another file, make it, empty: `pytest "
            "--trainsafe-annotate` does not, because the name may be misspelt"
        )
    return MissingFileError(
        f"{said}. A relative path begins at the working directory; for a file beside your "
        "program, use Path(__file__).with_name(...). If there is none yet, `pytest "
        "--trainsafe-annotate` makes it, and adds the layouts that are missing"
    )


def absent_file(error_type: str, error: str) -> Path | None:
    """The file that an error of `absent` is about, if it may be made; else None."""
    found = _ABSENT.match(error) if error_type.endswith(MissingFileError.__name__) else None
    return Path(found[1]) if found else None


def _beside(path: Path) -> list[str]:
    """The YAML files in the folder of a path."""
    try:
        names = os.listdir(path.absolute().parent)
    except OSError:
        return []
    return sorted(name for name in names if name.endswith((".yaml", ".yml")))
