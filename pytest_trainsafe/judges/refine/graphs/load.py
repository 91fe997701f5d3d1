"""A graph from whatever the user has: a Graph, a file, a text, or a graph module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_trainsafe.core.usage import shown as described
from pytest_trainsafe.errors import ArgumentTypeError
from pytest_trainsafe.judges.refine.graphs.fx_text import parse_fx, read_text
from pytest_trainsafe.judges.refine.graphs.graph import Graph
from pytest_trainsafe.judges.refine.graphs.hlo_text import is_hlo, parse_hlo


def graph_of(given: Any, name: str) -> Graph:
    """The graph that `given` is or holds; `name` is what messages call one without a name.

    A string with several lines is a text, another one the path of a file.
    """
    if isinstance(given, Graph):
        return given
    if isinstance(given, str) and "\n" in given:
        return _parsed(given, name)
    if isinstance(given, Path | str):
        return _parsed(read_text(given), Path(given).name)
    if _is_module(given):
        from pytest_trainsafe.judges.refine.graphs.modules import graph_of_module

        return graph_of_module(given, name)
    raise ArgumentTypeError(
        f"the {name} graph is {described(given)}; pass a Graph, a graph module, an "
        "exported program, or the path or the text of a torch.fx graph or an HLO module"
    )


def _parsed(text: str, name: str) -> Graph:
    return parse_hlo(text, name) if is_hlo(text) else parse_fx(text, name)


def _is_module(given: Any) -> bool:
    """Whether this is a graph module or an exported program, if torch has been imported at all."""
    graph = getattr(getattr(given, "graph_module", given), "graph", None)
    return hasattr(graph, "nodes")
