"""Reads annotation files as plain data, within limits; YAML is read nowhere else.

Called by `declared.py` and `write.py`.  A file may come from anybody, so PyYAML only splits it
into events.  This module builds the data from them: text, numbers, booleans, null, lists and
mappings, without tags or merge keys.  Limits are checked before anything is built.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trainsafe.annotations.entries import AnnotationError
from pytest_trainsafe.annotations.missing import absent
from pytest_trainsafe.core.cut_text import is_encodable
from pytest_trainsafe.core.usage import excerpt, shown

if TYPE_CHECKING:
    import yaml

#: Maximum bytes of a file, and maximum number of keys, values, lists and mappings in it.  Each
#: alias counts the value of its anchor again.
MAX_BYTES, MAX_NODES = 4 * 2**20, 100_000
#: The deepest nesting.  A whole annotation file needs five levels.
MAX_DEPTH = 16
#: Maximum length of a number.
_MAX_DIGITS = 18

_NO_TAGS = (
    "annotations cannot have tags, only text, numbers, booleans, lists and mappings; remove the tag"
)

_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"}
_FALSE = {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", re.I)


def read_text(path: Path) -> str:
    """The text of an annotation file.  Raises AnnotationError if it is too large or not text.

    Links are followed.  A pipe or a device is rejected without blocking.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise AnnotationError(
                    f"{path}: annotations cannot be read: it is not a regular file; give the path "
                    "of a YAML file"
                )
            data = file.read(MAX_BYTES + 1)
        if len(data) <= MAX_BYTES:
            # Normalises line ends to "\n", as `Path.read_text` does.
            return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()
    except FileNotFoundError as error:
        raise absent(path) from error
    except (OSError, ValueError) as error:
        if isinstance(error, AnnotationError):
            raise
        raise AnnotationError(
            f"{excerpt(str(path), 500)}: annotations cannot be read: {excerpt(str(error), 500)}. "
            f"A relative path starts at {Path.cwd()}; for a "
            "file beside your program, use Path(__file__).with_name(...)"
        ) from error
    raise AnnotationError(
        f"{path}: annotations cannot be read: the file has more than {MAX_BYTES} bytes. Check that "
        "it is the right file; if it is, shorten it: one pattern with * can replace many names"
    )


def load(text: str, origin: str) -> Any:
    """The data of an annotation file's text; `origin` names the file in errors.

    Raises AnnotationError for invalid YAML, duplicate keys, tags, merge keys, and for anything
    beyond the limits.
    """
    import yaml

    if re.search(r"^%TAG\b", text, re.MULTILINE):
        raise AnnotationError(f"{origin}: %TAG declares a tag; {_NO_TAGS}")
    # libyaml is about twenty times as fast, but PyYAML may have been built without it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(origin).build(yaml.parse(text, loader))
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise AnnotationError(f"{origin}: not YAML: {_said(error)}") from None


@dataclass(slots=True)
class _Anchored:
    """The value of an anchor, the number of nodes in it and how deep they are nested."""

    value: Any
    nodes: int
    height: int


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not been read yet; `before` counts the nodes before it."""

    value: list[Any] | dict[Any, Any]
    anchor: str | None
    before: int
    height: int = 1
    #: For a mapping: the line of each key, and whether the next node is the value of `key`.
    lines: dict[Any, int] = field(default_factory=dict)
    key: Any = None
    keyed: bool = False


class _Builder:
    """Builds data from the events of one YAML document; checks each limit as events arrive."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.nodes = 0
        self.root: Any = None
        self.open: list[_Open] = []
        self.anchors: dict[str, _Anchored] = {}

    def build(self, events: Iterable[yaml.Event]) -> Any:
        import yaml

        documents = 0
        for event in events:
            if isinstance(event, yaml.ScalarEvent):
                self._check_tag(event)
                node = _Anchored(self._scalar(event), 1, 0)
                self.nodes += 1
                self._keep(event.anchor, node)
                self._add(node, event)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._check_tag(event)
                mapping = isinstance(event, yaml.MappingStartEvent)
                self.open.append(_Open({} if mapping else [], event.anchor, self.nodes))
                self.nodes += 1
                if event.anchor is not None:
                    self.anchors.pop(event.anchor, None)  # an alias inside would be recursive
            elif isinstance(event, yaml.CollectionEndEvent):
                done = self.open.pop()
                node = _Anchored(done.value, self.nodes - done.before, done.height)
                self._keep(done.anchor, node)
                self._add(node, event)
            elif isinstance(event, yaml.AliasEvent):
                node = self._aliased(event)
                self.nodes += node.nodes
                self._add(node, event)
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._error(
                        event, "a second document begins; an annotation file has only one"
                    )
            if self.nodes > MAX_NODES:
                raise self._error(
                    event,
                    f"there are more than {MAX_NODES} keys and values, counting those that each "
                    "alias repeats; shorten the file: one pattern with * can replace many names",
                )
            if len(self.open) > MAX_DEPTH:
                raise self._error(event, self._too_deep)
        return self.root

    _too_deep = f"it is nested more than {MAX_DEPTH} levels deep; annotations need five"

    def _keep(self, anchor: str | None, node: _Anchored) -> None:
        if anchor is not None:
            self.anchors[anchor] = node

    def _aliased(self, event: yaml.AliasEvent) -> _Anchored:
        name = event.anchor or ""
        if any(outer.anchor == name for outer in self.open):
            raise self._error(
                event,
                f"the alias *{excerpt(name)} is inside its own anchor; write the value out",
            )
        if name not in self.anchors:
            raise self._error(
                event, f"the alias *{excerpt(name)} has no anchor before it; write the value out"
            )
        return self.anchors[name]

    def _add(self, node: _Anchored, event: yaml.Event) -> None:
        """Adds a finished node to the innermost open collection."""
        if not self.open:
            self.root = node.value
            return
        inner = self.open[-1]
        inner.height = max(inner.height, node.height + 1)
        if len(self.open) + node.height > MAX_DEPTH:
            raise self._error(event, self._too_deep)
        if isinstance(inner.value, list):
            inner.value.append(node.value)
        elif inner.keyed:
            inner.value[inner.key] = node.value
            inner.keyed = False
        else:
            self._add_key(inner, node.value, event)

    def _add_key(self, inner: _Open, key: Any, event: yaml.Event) -> None:
        line = _line(event)
        if isinstance(key, (list, dict)):
            raise self._error(event, f"{shown(key)} is used as a key; keys must be text")
        if key == "<<" and _is_plain(event):  # a merge key in YAML 1.1
            raise self._error(
                event,
                "merge keys (<<) are not supported; write out the entries that << would merge in, "
                'or, if the key is to be named <<, put it in quotes: "<<"',
            )
        if isinstance(key, str) and key in inner.lines:  # `parse` rejects keys that are not text
            raise AnnotationError(
                f"{self.origin}: {shown(key)} appears twice (line {inner.lines[key]} and line "
                f"{line}); keep one"
            )
        inner.lines[key] = line
        inner.key, inner.keyed = key, True

    def _check_tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        if event.tag is not None:
            raise self._error(event, f"found the tag {shown(event.tag)}; {_NO_TAGS}")

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        text: str = event.value
        if not is_encodable(text):  # libyaml refuses such an escape itself
            raise self._error(event, f"{shown(text)} has a lone surrogate; write the character")
        if not _is_plain(event):
            return text
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        number = int if _INTEGER.fullmatch(text) else float if _FLOAT.fullmatch(text) else None
        if number is None:
            return text
        if len(text) > _MAX_DIGITS:
            raise self._error(
                event,
                f"the number {excerpt(text)} has more than {_MAX_DIGITS} characters; shorten it, "
                "or put it in quotes if it is a name",
            )
        return number(re.sub(r"\.(?=[in])", "", text.lower()))  # Python spells .inf as inf

    def _error(self, event: yaml.Event, what: str) -> AnnotationError:
        return AnnotationError(f"{self.origin}: line {_line(event)}: {what}")


def _line(event: yaml.Event) -> int:
    mark = event.start_mark
    return mark.line + 1 if mark is not None else 0


def _is_plain(event: yaml.Event) -> bool:
    """Whether a scalar is unquoted."""
    return bool(getattr(event, "implicit", (False, False))[0])


def _said(error: Exception) -> str:
    """PyYAML's error message in one line."""
    import yaml

    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return excerpt(str(error), 300)
    mark = error.problem_mark
    words = ", ".join(filter(None, (error.context, error.problem)))
    return f"{excerpt(words, 300)} (line {mark.line + 1}, column {mark.column + 1})"
