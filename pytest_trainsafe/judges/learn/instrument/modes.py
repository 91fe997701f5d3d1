"""Notes in which mode models run before an optimizer steps."""

from __future__ import annotations

import re

from torch import nn

from pytest_trainsafe.judges.learn.events.mode_text import modes_text

#: The most modules that a text lists.
_LISTED = 6
_DIGITS = re.compile(r"(?<=\.)\d+(?=\.|$)")


class Modes:
    """The models that ran since the last step of an optimizer, and their modes."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, bool], str] = {}

    def ran(self, name: str, model: nn.Module, graded: bool) -> None:
        """Note the mode of a model that runs now, with gradients if `graded`."""
        self._seen[name, graded] = mode_of(model)

    def take(self) -> str:
        """The modes as a text (`modes_text`), "" if no model ran; begins anew."""
        found, self._seen = modes_text(self._seen), {}
        return found


def mode_of(model: nn.Module) -> str:
    """The mode of a model, and its outermost modules that are in the other mode."""
    mode = "training" if model.training else "evaluation"
    if all(each.training == model.training for each in model.modules()):
        return mode
    others: dict[str, None] = {}
    _other(model, model.training, "", others)
    more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
    return f"{mode} except {' '.join(list(others)[:_LISTED])}{more}"


def _other(module: nn.Module, training: bool, path: str, others: dict[str, None]) -> None:
    for name, child in module.named_children():
        inside = f"{path}.{name}" if path else name
        if child.training == training:
            _other(child, training, inside, others)
        else:
            others[_DIGITS.sub("*", f".{inside}")[1:]] = None
