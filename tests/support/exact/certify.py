"""The type of the fixture `certify`."""

from __future__ import annotations

from collections.abc import Callable

Certify = Callable[..., tuple[int, str, str]]
