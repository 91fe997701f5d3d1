"""Adds annotations to the text of an annotation file without changing the rest.

Called by `annotations/write.py`, and by the report for the text of a new file.  Comments, order
and spelling are kept; missing entries are inserted between the existing ones.  (Reading and writing
the file with ruamel.yaml would keep comments too, but not the indentation, the line breaks in a
mapping in braces, or a file that has only comments.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

#: Text that is a string in YAML without quotes.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
#: Keys whose lists are sets of axes.
_SETS = {"mean", "partial", "local", "gradient_partial"}
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def render(patch: Mapping[str, Any]) -> str:
    """Annotations as the text of a file, one line per entry."""
    lines = []
    for section, value in patch.items():
        if section in ("parameters", "modules"):
            lines += [f"{section}:", *(f"  {line}" for line in _entries(value))]
        elif section == "models":
            lines.append(f"{section}:")
            for model, own in value.items():
                lines += [f"  {_key(model)}:", *(f"    {t}" for t in render(own).splitlines())]
        else:
            lines.append(f"{section}: {_flow(value)}")
    return "".join(f"{line}\n" for line in lines)


def extend(text: str, patch: Mapping[str, Any]) -> str:
    """The text of a file, with the entries of `patch` that it lacks added.

    An existing key keeps its value, but a list of axes in brackets gets the missing axes.  A
    pattern "*" is inserted first, so that later patterns override it.  `text` must be a valid
    annotation file.
    """
    root = yaml.compose(text, yaml.SafeLoader)
    if isinstance(root, yaml.MappingNode) and not root.value:  # {}
        text = text[: root.start_mark.index] + text[root.end_mark.index :].lstrip("\n")
    if not isinstance(root, yaml.MappingNode) or not root.value:
        return text + ("\n" if text and not text.endswith("\n") else "") + render(patch)
    if root.flow_style:
        return _edited(text, _missing(text, root, patch, 0))
    edits: list[tuple[int, str]] = []
    there = {key.value: value for key, value in root.value}
    fresh = {section: value for section, value in patch.items() if section not in there}
    for section, value in patch.items():
        if section in there and isinstance(value, Mapping):
            edits += _missing(text, there[section], value, _column(root) + 2)
    text = _edited(text, edits)
    return text + ("\n" if fresh and not text.endswith("\n") else "") + render(fresh)


def _edited(text: str, edits: list[tuple[int, str]]) -> str:
    for place, addition in sorted(edits, reverse=True):
        text = text[:place] + addition + text[place:]
    return text


def _missing(
    text: str, node: yaml.Node, value: Mapping[str, Any], indent: int
) -> list[tuple[int, str]]:
    """The insertions, as (position, text), that add the missing keys of `value` to a YAML node.

    Positions are in `text`, the text of the whole file; `indent` is the number of spaces before
    the new keys.
    """
    if not isinstance(node, yaml.MappingNode):
        empty = node.value in ("", "~", "null") and node.start_mark.index == node.end_mark.index
        lines = "".join(f"\n{' ' * indent}{line}" for line in _entries(value))
        return [(node.end_mark.index, lines)] if empty else []
    there = {key.value: (key, item) for key, item in node.value}
    edits = []
    for key, item in value.items():
        if key in there and isinstance(item, Mapping):
            edits += _missing(text, there[key][1], item, there[key][0].start_mark.column + 2)
        elif key in there and isinstance(item, list) and key in _SETS:
            edits += _lacking(text, there[key][1], item)
    fresh = {key: item for key, item in value.items() if key not in there}
    if not fresh:
        return edits
    first = {key: item for key, item in fresh.items() if key == "*"}
    last = {key: item for key, item in fresh.items() if key != "*"}
    if node.flow_style or not node.value:
        start, end = node.start_mark.index + 1, node.end_mark.index - 1
        if not there:
            return [(start, ", ".join(_entries({**first, **last})))]
        if first:
            edits.append((start, ", ".join(_entries(first)) + ", "))
        if last:
            tail = text[:end].rstrip()
            comma = " " if tail.endswith(",") else ", "
            edits.append((len(tail), comma + ", ".join(_entries(last))))
        return edits
    pad = " " * _column(node)
    if first:
        start = node.value[0][0].start_mark.index
        edits.append((start, "".join(f"{line}\n{pad}" for line in _entries(first))))
    if last:
        end = _end(text, node.value[-1])
        edits.append((end, "".join(f"\n{pad}{line}" for line in _entries(last))))
    return edits


def _lacking(text: str, node: yaml.Node, items: list[str]) -> list[tuple[int, str]]:
    """The insertion, as (position, text), that adds the missing items to a list in brackets.

    The position is in `text`, the text of the whole file.  [] if no item is missing.
    """
    if not isinstance(node, yaml.SequenceNode) or not node.flow_style:
        return []
    fresh = [item for item in items if item not in {each.value for each in node.value}]
    tail = text[: node.end_mark.index - 1].rstrip()
    lead = "" if not node.value else " " if tail.endswith(",") else ", "
    return [(len(tail), lead + ", ".join(map(_flow, fresh)))] if fresh else []


def _column(node: yaml.MappingNode) -> int:
    column: int = node.value[0][0].start_mark.column
    return column


def _end(text: str, entry: tuple[yaml.Node, yaml.Node]) -> int:
    """The position in `text` of the end of an entry's last line.

    `entry` is the key and the value of the entry.  PyYAML's own end mark of a block is after
    trailing space.
    """
    node = entry[1]
    while isinstance(node, yaml.MappingNode | yaml.SequenceNode) and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    line = text.find("\n", node.end_mark.index)
    return len(text) if line < 0 else line


def _entries(value: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)}: {_flow(item)}" for key, item in value.items()]


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(_entries(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return value if isinstance(value, str) else json.dumps(value)


def _key(key: str) -> str:
    plain = _PLAIN.fullmatch(key) and key.lower() not in _WORDS
    return key if plain else json.dumps(key)
