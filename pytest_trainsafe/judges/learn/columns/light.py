"""Makes the call or the change in one row of a table again."""

from __future__ import annotations

from pytest_trainsafe.judges.learn.events.events import Call, Change
from pytest_trainsafe.judges.learn.events.table import NONE, Table, value_at


def light_call(table: Table, row: int) -> Call:
    """The call in a row of a table, with its values but without its parent."""
    columns = table.calls
    call = Call(
        table.texts[int(columns["api"][row])],
        table.metas[int(columns["meta"][row])],
        thread=int(columns["thread"][row]),
    )
    first = int(columns["values"][row])
    count = int(columns["arguments"][row]) + int(columns["results"][row])
    for at in range(first, first + count):
        call.values[table.texts[int(table.values["place"][at])]] = value_at(table, at)
    return call


def light_change(table: Table, row: int) -> Change:
    """The change in a row of a table, without the call that made it."""
    columns, texts = table.changes, table.texts
    before = int(columns["before"][row])
    return Change(
        object=texts[int(columns["object"][row])],
        type=texts[int(columns["type"][row])],
        attribute=texts[int(columns["attribute"][row])],
        after=value_at(table, int(columns["after"][row])),
        meta=table.metas[int(columns["meta"][row])],
        before=None if before == NONE else value_at(table, before),
        changed=bool(columns["changed"][row]),
    )
