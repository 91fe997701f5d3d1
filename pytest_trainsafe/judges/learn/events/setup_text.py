"""The text that says how a parameter is trained: the value of its attribute "setup".

It has up to three parts: whether the parameter requires gradients, the groups of optimizers that
hold it, and the other names that the model has for it, as in
"trainable; optimizer.param_groups.0; also model.head.weight".
"""

from __future__ import annotations

from collections.abc import Sequence

#: The attribute of parameters that has this text.  It is recorded when it is new or has changed.
SETUP = "setup"

_BETWEEN, _NOBODY, _ALSO = "; ", "in no optimizer", "also "


def setup_text(trainable: bool, groups: Sequence[str], others: Sequence[str]) -> str:
    """The text of a parameter.

    `groups` are names such as "optimizer.param_groups.0", and `others` further names of the
    parameter in its model, which tied layers have.
    """
    parts = ["trainable" if trainable else "frozen", ", ".join(groups) or _NOBODY]
    if others:
        parts.append(_ALSO + ", ".join(others))
    return _BETWEEN.join(parts)


def optimizers_in(text: str) -> list[str]:
    """The names of the optimizers that hold the parameter, such as "optimizer"."""
    groups = text.split(_BETWEEN)[1:2]
    if not groups or groups[0] == _NOBODY:
        return []
    return [group.partition(".")[0] for group in groups[0].split(", ")]
