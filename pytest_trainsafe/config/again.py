"""The words of a command line that a later run of one of its tests needs: settings, and its files.

Not the sweep, which reports may narrow.  Called by `read`.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pytest_trainsafe.config.table import OPTIONS

if TYPE_CHECKING:
    import pytest

#: The options that change what a test runs, or its verdict.
_DECISIVE = frozenset(
    {
        *("accept", "cache-inputs", "device", "dtype", "launcher", "max-threads"),
        *("max-world-size", "network", "packs", "packs-report", "profile", "record"),
        *("record-kinds", "record-modules", "rng", "seed", "timeout"),
    }
)

#: Where pytest stores its own options that say which files it reads, and these options.
_OF_PYTEST = {
    "inifilename": "-c",
    "rootdir": "--rootdir",
    "override_ini": "-o",
    "importmode": "--import-mode",
}

#: How pytest stores --strict-markers and --strict-config, which change no test.
_STRICT = "strict_"


def words_again(config: pytest.Config) -> str:
    """The words, each with a space before it, quoted for a shell; "" for none.

    In a worker of pytest-xdist they are those of its controller.
    """
    found = []
    for option in OPTIONS:
        typed = config.getoption(option.key) if option.name in _DECISIVE else None
        if typed is True:
            found.append(option.flag)
        elif typed not in (None, False):
            found += [option.flag, str(typed)]
    for name, flag in _OF_PYTEST.items():
        values = getattr(config.option, name, None) or ()
        for value in (values,) if isinstance(values, str) else values:
            default = value == "prepend" if name == "importmode" else value.startswith(_STRICT)
            found += [] if default else [flag, str(value)]
    return "".join(f" {shlex.quote(word)}" for word in found)
