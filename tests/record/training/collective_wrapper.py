"""A function around a collective, in a file of its own, as frameworks have them."""

from __future__ import annotations

import sys
from collections.abc import Callable


def reduce(heard: Callable[[str], None]) -> None:
    """Call a collective: tell its line."""
    heard(f"{__file__}:{sys._getframe().f_lineno}")
