"""Calls on which a result may depend are recorded at the program's line, and can be fixed."""

from __future__ import annotations

import os
import random
import secrets
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.judges.replay.determinism.instrument.sealed import sealed
from pytest_trainsafe.trace.operators import OutsideRead
from tests.support.record.operator_runs import recorded

#: Calls that give something else in every process, by the name of the call in reports. A sealed
#: program calls other functions by the same names.
CALLS: list[tuple[str, Callable[[], object]]] = [
    ("os.urandom", lambda: os.urandom(8)),
    ("os.getpid", lambda: os.getpid()),
    ("os.urandom", lambda: uuid.uuid4()),
    ("os.urandom", lambda: secrets.token_hex(8)),
    ("os.urandom", lambda: secrets.SystemRandom().random()),
    ("os.urandom", lambda: secrets.SystemRandom().sample(range(99), 9)),
    ("random.Random.seed(None)", lambda: random.Random().random()),
    ("time.time", lambda: time.time()),
    ("torch.seed", lambda: torch.seed()),
]
NAMES = ["urandom", "getpid", "uuid4", "token_hex", "SystemRandom", "sample", "Random", "time"]
NAMES += ["torch.seed"]


def in_a_thread() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def in_a_pool() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()


@pytest.fixture
def kept_generators():
    """Restores the default generators, which some calls seed."""
    python, default = random.getstate(), torch.get_rng_state()
    yield
    random.setstate(python)
    torch.set_rng_state(default)


@pytest.mark.usefixtures("kept_generators")
@pytest.mark.parametrize(("what", "call"), CALLS, ids=NAMES)
def test_a_read_before_the_recorded_step_is_recorded_at_the_programs_line(tmp_path, what, call):
    trace = recorded(tmp_path, call, step=1)

    at = f"{__file__}:{call.__code__.co_firstlineno}"
    assert trace.ranks[0].events_of(OutsideRead) == [OutsideRead(what, at, 0)]


@pytest.mark.parametrize(("call", "line"), [(in_a_thread, 2), (in_a_pool, 2)])
def test_the_line_that_starts_a_thread_is_recorded(tmp_path, call, line):
    trace = recorded(tmp_path, call, step=1)

    at = f"{__file__}:{call.__code__.co_firstlineno + line}"
    [read] = trace.ranks[0].events_of(OutsideRead)
    assert read == OutsideRead("threading.Thread.start", at, 0)


@pytest.mark.parametrize(
    ("what", "call"), [("id", lambda: id(object())), ("threading.get_ident", threading.get_ident)]
)
def test_a_read_of_an_address_is_recorded(tmp_path, what, call):
    trace = recorded(tmp_path, lambda: call(), step=1)

    assert [read.what for read in trace.ranks[0].events_of(OutsideRead)] == [what]


@pytest.mark.usefixtures("kept_generators")
@pytest.mark.parametrize(
    "call",
    [
        lambda: tempfile.TemporaryDirectory().cleanup(),
        lambda: random.Random(3).random(),
        lambda: random.seed(3),
    ],
    ids=["a library's own name", "a seed", "a seed of the default generator"],
)
def test_what_gives_the_program_nothing_random_is_not_recorded(tmp_path, call, monkeypatch):
    monkeypatch.setattr(tempfile, "_name_sequence", None)  # its generator is seeded anew
    assert recorded(tmp_path, call, step=1).ranks[0].events_of(OutsideRead) == []


@pytest.mark.usefixtures("kept_generators")
@pytest.mark.parametrize(("what", "call"), CALLS, ids=NAMES)
def test_a_sealed_program_reads_the_same_again_and_other_values_on_another_rank(
    what, call, monkeypatch
):
    read = []
    for rank in (0, 0, 1):
        monkeypatch.setenv("RANK", str(rank))
        with sealed():
            read.append(call())

    assert read[0] == read[1]
    assert (read[0] == read[2]) == (what == "time.time")


def test_random_seed_without_a_seed_is_sealed_too():
    state = random.getstate()
    drawn = []
    for _ in range(2):
        with sealed():
            random.seed()
            drawn.append(random.random())
    random.setstate(state)

    assert drawn[0] == drawn[1]


def test_libraries_read_real_values_in_a_sealed_program(tmp_path, monkeypatch):
    made = []
    for _ in range(2):
        monkeypatch.setattr(tempfile, "_name_sequence", None)  # its generator is seeded anew
        with sealed():
            made.append(Path(tempfile.mkdtemp(dir=tmp_path)).name)

    assert made[0] != made[1]


def test_everything_is_restored_after_a_sealed_program():
    before = (os.urandom, os.getpid, time.time, random.seed, random.Random.seed, torch.seed)

    with sealed():
        pass

    assert before == (
        os.urandom, os.getpid, time.time, random.seed, random.Random.seed, torch.seed
    )  # fmt: skip
