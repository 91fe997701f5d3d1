"""Does, at its import, what every rank would do before it trains.  The fork server imports it."""

from __future__ import annotations

from pytest_trainsafe import wings
from pytest_trainsafe.record.program_dtype.random_operators import register_for_good, why_not

if not why_not():
    register_for_good()
wings.objects(wings.INSTRUMENTS)
