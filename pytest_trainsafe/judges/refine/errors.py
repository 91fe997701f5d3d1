"""What is wrong with a graph, a relation or a certificate; each error names the place."""

from __future__ import annotations

from pytest_trainsafe.errors import TrainsafeError


class GraphError(TrainsafeError):
    """A graph cannot be read or evaluated; the message names the graph, the node and the line."""


class CannotSayError(TrainsafeError):
    """Nothing can be said about a graph, because something it needs is not known.

    `operator` is the name of an operator without semantics, or "".
    """

    def __init__(self, message: str, operator: str = "") -> None:
        super().__init__(message)
        self.operator = operator


class InputRelationError(TrainsafeError, ValueError):
    """A relation that the user declares does not fit the graphs."""


class CertificateError(TrainsafeError):
    """A certificate is refused: it is damaged, or does not hold for the graphs."""
