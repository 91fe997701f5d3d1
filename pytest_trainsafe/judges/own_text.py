"""The sentences of a judge, in the module that its judgements name."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from pytest_trainsafe.judges.contract import Judgement


def own_text(judgement: Judgement) -> ModuleType | None:
    """The module with `message` and `first_line` of a judgement; None if it names none."""
    path = getattr(judgement, "text", "")
    return import_module(path) if path else None
