"""Keeps the names of the files in folders that are links.

In a checkout, `fixtures`, `invariants` and `reference_models` in the package are links to the
folders of the repository.  Reports name the files by their paths in the repository, so these
packages call this at their import, and `runs/cached/sources.py` when it finds them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable


def unlinked(folders: Iterable[str]) -> list[str]:
    """The folders; in place of one that is a link, the folder that it leads to."""
    return [os.path.realpath(each) if os.path.islink(each) else each for each in folders]
