"""The text that says in which modes models ran before an optimizer stepped.

Each part has the name of a model and its mode, as in "model training except bn.*; model2
without gradients evaluation".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_BETWEEN, _QUIET = "; ", " without gradients"
_PART = re.compile(rf"(\S+(?:{_QUIET})?) ((?:training|evaluation)\b.*)")


def modes_text(modes: Mapping[tuple[str, bool], str]) -> str:
    """The text of modes, which has the mode of each model and whether it ran with gradients."""
    parts = [f"{name}{'' if graded else _QUIET} {modes[name, graded]}" for name, graded in modes]
    return _BETWEEN.join(sorted(parts))


def modes_in(text: object) -> dict[str, str]:
    """The mode of each model in a text; "model without gradients" is a name of its own."""
    found = map(_PART.fullmatch, str(text).split(_BETWEEN))
    return {part[1]: part[2] for part in found if part is not None}


def trains(text: object) -> bool | None:
    """Whether some model that ran with gradients was in training mode; None if none ran."""
    modes = [mode for name, mode in modes_in(text).items() if not name.endswith(_QUIET)]
    return any(mode.startswith("training") for mode in modes) if modes else None
