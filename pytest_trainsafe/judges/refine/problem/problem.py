"""What is asked: a sequential graph, the graphs of all ranks, and the relation of their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.core.usage import listing, nearest
from pytest_trainsafe.judges.refine.errors import InputRelationError
from pytest_trainsafe.judges.refine.graphs.graph import CONSTANT, INPUT, Graph
from pytest_trainsafe.judges.refine.mesh import RankMesh
from pytest_trainsafe.judges.refine.relations.relation import Relation


@dataclass(frozen=True)
class Problem:
    """Graphs, and what the user says of them.

    `inputs` has a relation for each input of the sequential graph, and perhaps for constants and
    for results of operators, which are then taken as given.  `outputs` has the relations that
    results must have.  `constants` has the values of scalars that a graph's text does not hold,
    and `below` the bounds of integer inputs, which are drawn from 0 up.
    If it is `partial`, inputs without a relation are not known, nor is what is computed from them.
    Raises InputRelationError where these do not fit the graphs.
    """

    sequential: Graph
    ranks: Sequence[Graph]
    mesh: RankMesh
    inputs: Mapping[str, Relation]
    outputs: Mapping[str, Relation] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    below: Mapping[str, int] = field(default_factory=dict)
    partial: bool = False

    def __post_init__(self) -> None:
        if len(self.ranks) != self.mesh.size:
            count = len(self.ranks)
            there = "there is 1 graph" if count == 1 else f"there are {count} graphs"
            raise InputRelationError(
                f"{there} of ranks, but the mesh "
                f"{dict(self.mesh.axes)} has {self.mesh.size} ranks; give one graph for each rank"
            )
        known = self.sequential.by_name
        for name in (*self.inputs, *self.outputs, *self.below):
            if name not in known:
                inputs = [node.name for node in self.sequential.inputs]
                # make_fx calls the input x of a function x_1
                near = nearest(f"{name}_1", known) if f"{name}_1" in known else nearest(name, known)
                raise InputRelationError(
                    f"{self.sequential.name} has no tensor {shown(name)}{near}; its inputs: "
                    f"{listing(inputs) or 'none'}"
                )
        for node in () if self.partial else self.sequential.inputs:
            if node.name not in self.inputs:
                raise InputRelationError(
                    f"the relation says nothing of the input {shown(node.name)} of "
                    f"{self.sequential.name}"
                )
        self._check_ranks()

    def _check_ranks(self) -> None:
        said = {name for relation in self.inputs.values() for name in relation.names}
        for graph in () if self.partial else self.ranks:
            for node in graph.nodes:
                if node.operator == INPUT and node.name not in said:
                    raise InputRelationError(
                        f"the relation says nothing of the input {shown(node.name)} of {graph.name}"
                    )
        known = {name for graph in self.ranks for name in graph.by_name}
        for relation in (*self.inputs.values(), *self.outputs.values()):
            for name in relation.names:
                if name not in known:
                    raise InputRelationError(f"no graph of a rank has a tensor {shown(name)}")

    @property
    def given(self) -> tuple[str, ...]:
        """Results of sequential operators that the relation of inputs takes as given."""
        nodes = self.sequential.by_name
        return tuple(name for name in self.inputs if nodes[name].operator not in (INPUT, CONSTANT))
