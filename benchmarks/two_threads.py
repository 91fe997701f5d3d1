"""Gives every rank two threads when it is imported.

`bench_numerics.py` imports it, and loads it into pytest as a plugin. The environment cannot do so,
because the launchers set OMP_NUM_THREADS for the ranks.
"""

from __future__ import annotations

import functools

from pytest_trainsafe.launch import Task

Task.of = functools.partial(Task.of, threads=2)  # type: ignore[method-assign]
