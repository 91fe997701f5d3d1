"""Says what to install if what `--trainsafe-report` needs is missing.  Imports none of it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

#: What the extra `report` installs, as modules.
_NEEDED = ("jinja2",)


def require_extra() -> None:
    """Raises pytest.UsageError if a package is missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise pytest.UsageError(
            f"--trainsafe-report needs {' and '.join(missing)}, which this environment lacks; "
            "install it with: pip install 'pytest-trainsafe[report]'"
        )
