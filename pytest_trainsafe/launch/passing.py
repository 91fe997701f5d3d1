"""Which files only hand a collective on, so that messages name the line that wanted it.

Asked in the ranks by `ledger` and in the parent by `stacks`; imports no torch.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

#: Folders of frameworks' own functions around those of `torch.distributed`.
_LAYERS = (os.path.join(os.sep, "deepspeed", "comm", ""),)

_PACKAGE = Path(__file__).parents[1]
#: What every recorded rank has below its program and around its calls.
_OURS = tuple(f"{_PACKAGE / name}{os.sep}" for name in ("launch", "record"))

_STDLIB = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def passes_on(file: str) -> bool:
    """Whether the file is ours, or a framework's layer over `torch.distributed`: deepspeed/comm."""
    return file.startswith(_OURS) or any(layer in file for layer in _LAYERS)


def is_stdlib(file: str) -> bool:
    """Whether the file is of Python's own library."""
    return file.startswith(_STDLIB) and not is_installed(file)


def is_installed(file: str) -> bool:
    """Whether the file is of a package that somebody installed, and not the user's own."""
    return any(folder in file for folder in _INSTALLED)
