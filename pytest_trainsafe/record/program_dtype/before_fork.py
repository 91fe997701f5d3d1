"""Does, at its import, what every rank would do before it trains.  The fork server imports it."""

from __future__ import annotations

from pkgutil import resolve_name

from pytest_trainsafe import wings
from pytest_trainsafe.record.program_dtype.random_operators import register_for_good, why_not

if not why_not():
    register_for_good()
for kind in wings.objects(wings.INSTRUMENTS):
    resolve_name(f"{kind.__module__}:{kind.__qualname__}")  # it compiles a pattern once
