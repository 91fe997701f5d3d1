"""Removes what a captured graph does apart from everything else, such as initial random values."""

from __future__ import annotations

from dataclasses import replace

from pytest_trainsafe.judges.refine.graphs.graph import INPUT, Graph


def without_unused(graph: Graph) -> Graph:
    """The graph without operators that neither results nor messages have to do with.

    Operators that are connected in any way stay together, because one may write into memory that
    another reads.
    """
    parents = {node.name: node.name for node in graph.nodes}

    def root(name: str) -> str:
        while parents[name] != name:
            parents[name] = name = parents[parents[name]]
        return name

    for node in graph.nodes:
        for each in node.inputs:
            parents[root(each)] = root(node.name)
    used = {root(name) for name in graph.outputs if name is not None}
    used |= {root(node.name) for node in graph.nodes if not _computes(node.operator)}
    kept = tuple(node for node in graph.nodes if node.operator == INPUT or root(node.name) in used)
    return replace(graph, nodes=kept)


def _computes(operator: str) -> bool:
    """Whether an operator only computes; others communicate."""
    return operator.startswith("aten.") or "." not in operator
