"""Runs a program of this folder with draws in the dtype of the rung, as torch makes them."""

from __future__ import annotations

import importlib
from typing import Any

from pytest_trainsafe.record.program_dtype.draws import Draws


def train(ctx: Any, module: str, fault: str = "") -> None:
    """Trains `module`; random operators draw in the dtype that they are asked for."""
    original = Draws._wanted
    Draws._wanted = lambda *_: None  # type: ignore[method-assign]
    try:
        importlib.import_module(module).train(ctx, fault=fault)
    finally:
        Draws._wanted = original  # type: ignore[method-assign]
