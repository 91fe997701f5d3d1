"""Does, at its import, what every rank would do before it trains.  The fork server imports it."""

from __future__ import annotations

from pytest_trainsafe import wings
from pytest_trainsafe.record.program_dtype.random_operators import let_others_through, why_not

if not why_not():
    let_others_through()
wings.objects(wings.INSTRUMENTS)
