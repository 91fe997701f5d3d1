"""The ledger records whether several threads use a generator concurrently."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pytest_trainsafe.trace.rng.events import DrawEvent
from pytest_trainsafe.trace.rng.ledger import ledger


def sharing(record, during):
    """The threads of draws recorded as shared, each with the other thread that the event names."""

    def train(ctx):
        model = nn.Linear(2, 2)
        ctx.initialize(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ctx.watch(model, optimizer)
        with ctx.step():
            during()
            with ctx.microbatch(0):
                model(torch.ones(2, 2, dtype=ctx.dtype)).sum().backward()
            optimizer.step()

    events = [e for e in ledger(record(train).rank) if isinstance(e, DrawEvent)]
    assert events
    return {(e.thread, e.shared) for e in events if e.shared}


def in_turn(first, second):
    """Runs two threads that draw one after the other while both are running."""
    drawn, done = threading.Event(), threading.Event()

    def one():
        first()
        drawn.set()
        done.wait(60)

    def other():
        drawn.wait(60)
        second()
        done.set()

    threads = [threading.Thread(target=each, name=each.__name__) for each in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


@pytest.mark.parametrize("kind", ["default", "own", "numpy"])
def test_draws_of_two_running_threads_from_a_generator_are_recorded_as_shared(record, kind):
    own = torch.Generator().manual_seed(1)
    draw = {
        "default": lambda: torch.rand(2),
        "own": lambda: torch.rand(2, generator=own),
        "numpy": lambda: np.random.rand(2),
    }[kind]

    assert sharing(record, lambda: in_turn(draw, draw)) == {("other", "one")}


def beside_the_main_thread(draw, *, again):
    """Draws in the main thread, and then in a new thread beside which the main thread works.

    With `again`, the main thread draws once more before the new thread draws.
    """
    working: list[bool] = []
    drawn, deadline = [], time.monotonic() + 60

    def augment():
        while not working and time.monotonic() < deadline:
            pass
        for _ in range(3):
            draw()
        drawn.append(True)

    draw()
    thread = threading.Thread(target=augment, name="augmenter")
    thread.start()
    if again:
        draw()
    working.append(True)
    while not drawn and time.monotonic() < deadline:
        pass
    thread.join()


@pytest.mark.parametrize("draw", [lambda: torch.rand(2), lambda: np.random.rand(2)])
def test_a_draw_of_a_thread_while_the_main_thread_works_is_recorded_as_shared(record, draw):
    during = partial(beside_the_main_thread, draw, again=True)

    assert sharing(record, during) == {("augmenter", "MainThread")}


@pytest.mark.parametrize("draw", [lambda: torch.rand(2), lambda: np.random.rand(2)])
def test_draws_of_a_thread_started_after_the_main_threads_last_draw_are_not_shared(record, draw):
    during = partial(beside_the_main_thread, draw, again=False)

    assert sharing(record, during) == set()


def test_draws_of_threads_with_separate_generators_are_not_recorded_as_shared(record):
    def draw():
        torch.rand(2, generator=torch.Generator().manual_seed(1))

    assert sharing(record, lambda: in_turn(draw, draw)) == set()


@pytest.mark.parametrize("wait", ["join", "queue", "lock", "future"])
def test_draws_of_a_thread_that_the_main_thread_waits_for_are_not_recorded_as_shared(record, wait):
    def during():
        torch.rand(2)
        results, lock = queue.SimpleQueue[Any](), threading.Lock()
        lock.acquire()

        def draw():
            torch.rand(2)
            results.put(1)
            lock.release()

        if wait == "future":
            with ThreadPoolExecutor(1) as pool:
                pool.submit(draw).result()
            return
        thread = threading.Thread(target=draw)
        thread.start()
        if wait == "queue":
            results.get()
        if wait == "lock":
            lock.acquire(timeout=threading.TIMEOUT_MAX)
        thread.join()
        torch.rand(2)

    assert sharing(record, during) == set()


def test_sequential_draws_of_thread_pool_workers_are_not_recorded_as_shared(record):
    def during():
        with ThreadPoolExecutor(2) as pool:
            for _ in range(4):
                pool.submit(torch.rand, 2).result()

    assert sharing(record, during) == set()
