"""Gives every rank two threads.  Imported by `bench_numerics.py`, and a plugin of pytest there.

The launchers set OMP_NUM_THREADS for the ranks themselves, so the environment cannot.
"""

from __future__ import annotations

import functools

from pytest_trainsafe.launch import Task

Task.of = functools.partial(Task.of, threads=2)  # type: ignore[method-assign, assignment]
