"""Which differences between two ranks' ledgers are mismatches, and which are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_trainsafe.launch.collectives.collective import Collective, read_ledger
from pytest_trainsafe.launch.collectives.ledger_check import check_ledgers

DONE = [True, True]


def call(op: str = "all_reduce", **fields: Any) -> Collective:
    """A collective of ranks 0 and 1, as a ledger holds it."""
    values: dict[str, Any] = {"group": "0", "ranks": (0, 1), "site": "a.py:1"}
    if op == "all_reduce":
        values |= {"reduce": "SUM", "dtype": "float32", "shape": (4,)}
    return Collective(op=op, **(values | fields))


def gather(*, gives: int, takes: tuple[int, int]) -> Collective:
    """An all_gather."""
    return call("all_gather", shape=(gives,), dtype="float32", gives=(gives, gives), takes=takes)


DISAGREE: list[tuple[str, Collective, Collective, str]] = [
    ("op", call(), call("barrier"), "(operation)"),
    ("reduce", call(), call(reduce="MAX"), "(reduction)"),
    ("root", call("broadcast", root=0), call("broadcast", root=1), "(root)"),
    ("dtype", call(), call(dtype="int32"), "(dtype)"),
    ("numel", call(), call(shape=(5,)), "(number of elements)"),
    ("shape", call(shape=(2, 3)), call(shape=(3, 2)), "(shape)"),
    (
        "parts",
        gather(gives=3, takes=(3, 3)),
        gather(gives=4, takes=(3, 4)),
        "(4 elements sent, 3 received)",
    ),
    ("arguments", call(detail="[4] elements"), call(detail="[5] elements"), "(arguments)"),
]


@pytest.mark.parametrize(
    ("a", "b", "why"), [row[1:] for row in DISAGREE], ids=[r[0] for r in DISAGREE]
)
def test_a_mismatch_between_ledgers_names_what_differs(
    a: Collective, b: Collective, why: str
) -> None:
    ((text, _, group),) = check_ledgers([[call(), a], [call(), b]], DONE)
    assert group == ("0", (0, 1))
    head = "collective mismatch: collective 2 of the group of ranks [0, 1] differs"
    assert text == f"{head} {why}: rank 0 {a}; rank 1 {b}"


AGREE: list[tuple[str, Collective, Collective]] = [
    ("call sites", call(site="a.py:1"), call(site="b.py:2")),
    ("one element", call(shape=()), call(shape=(1,))),
    ("uneven parts", gather(gives=3, takes=(3, 4)), gather(gives=4, takes=(3, 4))),
    ("one unnamed", call(name="weight"), call()),
    ("tied embeddings", call(name="embedding.weight"), call(name="output_layer.weight")),
]


@pytest.mark.parametrize(("a", "b"), [row[1:] for row in AGREE], ids=[row[0] for row in AGREE])
def test_allowed_differences_between_ledgers_are_no_mismatch(a: Collective, b: Collective) -> None:
    assert check_ledgers([[a], [b]], DONE) == []


def test_a_call_that_a_stopped_rank_did_not_make_is_no_mismatch() -> None:
    assert check_ledgers([[call(), call()], [call()]], [False, False]) == []


def test_a_call_that_a_finished_rank_did_not_make_is_a_mismatch() -> None:
    calls = [[call(), call(site="b.py:7", user="a.py:3")], [call()]]
    ((text, at, _),) = check_ledgers(calls, [False, True])
    assert "collective 2 of the group of ranks [0, 1] is made by rank 0 but not by rank 1" in text
    assert "rank 1, which finished after 1 collective of this group: rank 0 " in text
    assert at == "a.py:3"


def test_a_finished_rank_with_an_empty_ledger_is_a_mismatch() -> None:
    ((text, *_),) = check_ledgers([[call()], []], [False, True])
    assert "rank 1, which finished after no collectives of this group: rank 0 " in text


def test_process_groups_are_compared_separately() -> None:
    """Ranks may take their groups in any order, if each group's order is the same."""
    one, two = call(group="1"), call(group="2", reduce="MAX")
    assert check_ledgers([[one, two], [two, one]], DONE) == []


def send(**fields: Any) -> Collective:
    return call("send", **({"peer": 1, "dtype": "float32", "shape": (2, 3)} | fields))


def recv(**fields: Any) -> Collective:
    return call("recv", **({"peer": 0, "dtype": "float32", "shape": (6,)} | fields))


def test_a_recv_with_the_tag_and_size_of_its_send_is_no_mismatch() -> None:
    assert check_ledgers([[send(), send(tag=1)], [recv(tag=1), recv()]], DONE) == []


def test_a_recv_from_any_source_is_not_checked() -> None:
    assert check_ledgers([[send()], [recv(peer=None, shape=(9,))]], DONE) == []


MISSING: list[tuple[str, list[Collective], list[Collective]]] = [
    ("send 2 from rank 0 to rank 1 is never received: rank 0 send", [send(), send()], [recv()]),
    (
        "recv 2 by rank 1 from rank 0 has no matching send: rank 1 recv",
        [send()],
        [recv(), recv()],
    ),
]


@pytest.mark.parametrize(("text", "zero", "one"), MISSING)
def test_an_unmatched_send_or_recv_is_named(
    text: str, zero: list[Collective], one: list[Collective]
) -> None:
    ((found, _, group),) = check_ledgers([zero, one], DONE)
    assert text in found
    assert group is None
    assert check_ledgers([zero, one], [False, False]) == []


def test_an_incomplete_last_line_of_a_ledger_is_ignored(tmp_path: Path) -> None:
    """A rank that is killed while it writes leaves half a line."""

    whole = msgspec.json.encode(call())
    (tmp_path / "ledger.jsonl").write_bytes(whole + b"\n" + whole[:20])
    assert read_ledger(tmp_path / "ledger.jsonl") == ([call()], False)
