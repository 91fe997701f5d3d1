"""Documents of pages that no run made: with a text in every place, or with many Points."""

from __future__ import annotations

import base64
import struct

from pytest_trainsafe.report.html.document import Document, Entry, Run
from pytest_trainsafe.report.panels import (
    LABEL,
    Border,
    Code,
    Event,
    Graph,
    HeatMap,
    Line,
    Map,
    Maps,
    Node,
    Panel,
    Section,
    Series,
    Table,
    Timeline,
)
from pytest_trainsafe.report.run.outcome import FirstDifference, Outcome

#: Sets the marker that the tests look for, if anything runs it.
_RUN = "window.executed=1"

#: Markup, scripts and styles that must stay text.
MARKUP = (
    f"<script>{_RUN}</script>",
    f"</script><script>{_RUN}</script>",
    f"</SCRIPT ><script>{_RUN}//",
    f"<!--<script>{_RUN}",
    f"--><script>{_RUN}</script>",
    "<!-- <script>",
    f"]]><script>{_RUN}</script>",
    f"<img src=x onerror={_RUN}>",
    f"<svg onload={_RUN}>",
    f"<svg><script>{_RUN}</script></svg>",
    f"<math><mtext></math><img src=x onerror={_RUN}>",
    f"<body onload={_RUN}>",
    f"<iframe srcdoc='<script>parent.{_RUN}</script>'>",
    f"<details open ontoggle={_RUN}>",
    f"<input autofocus onfocus={_RUN}>",
    f"<a href='javascript:{_RUN}'>x</a>",
    f"javascript:{_RUN}",
    "data:text/html,<script>parent.executed=1</script>",
    f'"><script>{_RUN}</script>',
    f"' onmouseover='{_RUN}",
    f'" autofocus onfocus="{_RUN}',
    f"`${{{_RUN}}}`",
    f"');{_RUN};//",
    f"\\u003cscript\\u003e{_RUN}\\u003c/script\\u003e",
    "&lt;script&gt;&amp;&quot;&#60;",
    "{{ 7 * 7 }}{% raw %}{# no comment #}",
    "<style>*{display:none}</style>",
    "</style><style>body{display:none}</style>",
    "<base href='https://example.org/'>",
    "<meta http-equiv=refresh content='0;url=https://example.org/'>",
    "<link rel=stylesheet href='https://example.org/a.css'>",
    "<plaintext>",
    "<textarea><title>",
    "<table><tr><td></table></div></main></body>",
    "__proto__",
    "constructor",
    "&tensor=x#point=y",
)

#: Other texts: control characters, directions of text, separators of lines, and great lengths.
OTHERS = (
    "nul \0 inside",
    "\x1b[31mred\x1b[0m \x07 \x08\x08",
    "line\u2028separator\u2029and\x85next",
    "carriage\r\nreturn\ttab",
    "\u202eright to left override",
    "\u2066isolate without an end \u2067 \u2068",
    "\u05e9\u05dc\u05d5\u05dd.\u05e2\u05d5\u05dc\u05dd",
    "a\u0301\u0302\u0303" * 40,
    "\U0001f469\u200d\U0001f52c\ufeff\u200b\u200d",
    "x" * 10_000,
    "layers.0." * 1_200,
    "wide \u3000 \u6a21\u578b" * 900,
    " " * 300,
)

HOSTILE = (*MARKUP, *OTHERS)

_VALUES = base64.b64encode(struct.pack("<16f", *range(16))).decode()


def panels_with(text: str) -> tuple[Panel, ...]:
    """A panel of every kind with a text in every place."""
    own = text[:LABEL]
    cells = (own, own, 1.5)
    maps = tuple(Map(own, (4, 4), _VALUES, (Border(0, 0, 2, 4, own),)) for _ in range(3))
    return (
        Table(
            title=own, columns=(own, own, own), rows=(cells,) * 3,
            states=("first", "wrong", "pale"), anchors=(own,) * 3, note=text,
        ),
        Table(title=own, rows=((own, own),) * 2),
        HeatMap(
            title=own, rows=(own, own), columns=(own, own), values=((0.1, 5.0), ("inf", None)),
            anchors=((own, own), (own, own)), first=(0, 1), note=text,
        ),
        Graph(
            title=own, lanes=(own, own), rows=(own, own), up=(1,), note=text,
            nodes=(Node(0, 0, "pale", 0.1, own, own), Node(1, 1, "first", "inf", own, own)),
        ),
        Series(
            title=own, places=(own,) * 3, lines=(Line(own, (1e-9, 1e-3, "inf")),), quantity=own,
            states=("", "first", ""), anchors=(own,) * 3, note=text,
        ),
        Timeline(
            title=own, lanes=(own, own), unit=own, note=text,
            events=(Event(0, 0, 1, own, own, "first", own, own), Event(1, 1, 1, own, own)),
        ),
        Maps(title=own, maps=maps, anchor=own, note=text),
        Code(title=own, file=own, first=1, lines=(own, own), marked=2, note=text, steps=(1,),
             runs=own),
    )  # fmt: skip


#: A panel of every kind without anything in it.
EMPTY: tuple[Panel, ...] = (
    Table(title="table", rows=()),
    HeatMap(title="heat map", rows=(), columns=(), values=()),
    Graph(title="graph", lanes=(), rows=(), nodes=()),
    Graph(title="graph without nodes", lanes=("forward",), rows=("norm",), nodes=()),
    Series(title="series", places=(), lines=()),
    Series(title="series of gaps", places=("norm",), lines=(Line("error", (None,)),)),
    Timeline(title="timeline", lanes=(), events=()),
    Maps(title="maps", maps=()),
    Code(title="code", file="", first=0, lines=(), marked=0),
)


def entry_with(text: str, number: int = 0) -> Entry:
    """A failing Point with a text in every place that has one."""
    own = text[:2_000]
    first = FirstDifference(
        check=own, where=own, tensor=own, module=own, message=own, pattern=own, pattern_name=own,
        cause=own, dtype=own, error=1.0, allowed=1e-9, source=own, what=own, located=True,
        facts=((own[:LABEL], own), ("", own)),
    )  # fmt: skip
    outcome = Outcome(
        f"{own}::{own}[{number}]", "fail", True, program=own, point=own,
        axes=((own, own), ("tp", str(number))), tensors=(3,), worst=2.0, worst_name=own,
        seconds=1.0, reason=own, first=first, location=own, line=own,
    )  # fmt: skip
    label = text[:LABEL]
    section = Section(
        judge=label, verdict="fail", what=label, text=text, notes=(text,), panels=panels_with(text)
    )
    return Entry(
        outcome=outcome, sections=(section,), run=0, stages={label: 1.0}, notes=(text,), rerun=own
    )


def document_with(texts: tuple[str, ...]) -> Document:
    """A Document with a failing Point for each text."""
    label = texts[0][:LABEL]
    run = Run(
        settings={label: label}, versions={label: label}, options=texts[0], seconds=1.0,
        skipped={label: 1},
    )  # fmt: skip
    entries = tuple(entry_with(text, number) for number, text in enumerate(texts))
    return Document(runs=(run,), entries=entries)
