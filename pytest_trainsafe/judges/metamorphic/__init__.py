"""Judges metamorphic relations.  Called by `assert_same_by`.

A metamorphic relation changes a Run, for example its batch size, so that the changed Run must by
definition train in the same way as the unchanged one.

checks     the name of its check that can be inconclusive
judge      asks for the two Runs, compares their training, and checks that the change had an effect
change     applies a relation's change to a RunSpec, and raises errors for changes that do not fit
varied     executes one of the two Runs, and translates its traces for the comparison
translate  turns a trace's tensors into those of the other Run, so that they can be compared
kept       the file of relations that were found on healthy Runs
find       tries relations on healthy Runs, or asserts those that the file keeps
"""

from __future__ import annotations


def __getattr__(name: str) -> object:
    """Imports `relations` when it is first used, because most projects do not use it."""
    if name != "relations":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module(f"{__name__}.relations")
