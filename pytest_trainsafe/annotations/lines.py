"""The lines of an annotation file, so that messages can say which one to correct.

Called for errors by `declared.py`, and by judges for entries that ranks name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trainsafe.annotations.entries import AnnotationError
from pytest_trainsafe.annotations.text import load, read_text

if TYPE_CHECKING:
    import yaml

#: What an error says after the file: a line of its own, or the entry that it is about.
_OWN = re.compile(r"line (\d+): |(?:not YAML: |.* appears twice \().*?line (\d+)")
_ENTRY = re.compile(r"`?((?:parameters|modules|buffers|gradients|loss|models|cp_order)\b[^`]*)")
_SAID = re.compile(r"(?: is| has| lists) .*", re.DOTALL)


def place_of(path: Path, entry: str, model: str = "") -> str:
    """The "file:line" of an entry, such as "parameters: fc.weight"; of line 1 if it is not found.

    `model` is the model whose entries apply, if the file has several.
    """
    try:
        text = read_text(path)
        load(text, str(path))  # within the limits of annotations
    except AnnotationError:
        text = ""
    return f"{os.path.abspath(path)}:{_line_of(text, entry, model) or 1}"


def with_line(message: str, path: Path, text: str, model: str = "") -> str:
    """The message of an error about a file with this text, which begins with "file:line"."""
    for name in (f"{path}#{model}: ", f"{path}: "):
        said = message.removeprefix(name)
        if said == message:
            continue
        if own := _OWN.match(said):
            line = int(own[1] or own[2])
            said = said.removeprefix(f"line {line}: ")
        else:
            entry = _ENTRY.match(said)
            line = _line_of(text, _SAID.sub("", entry[1]), model) if entry else 0
        return f"{os.path.abspath(path)}:{line or 1}: {said}"
    return message


def _line_of(text: str, entry: str, model: str) -> int:
    """The line of the last key of an entry's path that the text has; 0 if it has none."""
    import yaml

    try:
        root = yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, UnicodeEncodeError):
        return 0
    keys = entry.split(": ")
    own = _last(root, ["models", model, *keys]) if model else (0, 0)
    common = _last(root, keys)
    return own[1] if own[0] >= common[0] + 2 else common[1]


def _last(node: yaml.Node | None, keys: list[str]) -> tuple[int, int]:
    """How many keys of a path a mapping has, one in the other, and the line of the last."""
    depth = line = 0
    for key in keys:
        pairs = getattr(node, "value", ()) if getattr(node, "id", "") == "mapping" else ()
        found = next((pair for pair in pairs if pair[0].value == key), None)
        if found is None:
            break
        depth, line, node = depth + 1, found[0].start_mark.line + 1, found[1]
    return depth, line
