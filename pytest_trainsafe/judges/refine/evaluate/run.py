"""Evaluates both sides of a problem on doubles, which take decisions, and then on residues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_trainsafe.arithmetic import Doubles, ExactMode, Numbers, Residues
from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.judges.refine.errors import InputRelationError
from pytest_trainsafe.judges.refine.evaluate.constants import constants
from pytest_trainsafe.judges.refine.evaluate.draw import bounds, floats, value_of
from pytest_trainsafe.judges.refine.evaluate.kernels import semantics
from pytest_trainsafe.judges.refine.evaluate.lockstep import Tensors, evaluate
from pytest_trainsafe.judges.refine.evaluate.marks import marks
from pytest_trainsafe.judges.refine.evaluate.memory import Place
from pytest_trainsafe.judges.refine.graphs.graph import Graph
from pytest_trainsafe.judges.refine.mesh import RankMesh
from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.relations.cut import cut

_ALONE = RankMesh({})


@dataclass(frozen=True)
class Evaluated:
    """The results of all nodes: of the sequential graph, and of each rank's.

    `places` has the memory of the sequential results, if the graph writes into memory.
    """

    sequential: Tensors
    ranks: Sequence[Tensors]
    numbers: Numbers
    met: Counter[str]
    places: Mapping[str, Place]

    @property
    def elements(self) -> int:
        """How many numbers were computed; views of a tensor count once."""
        sizes = {
            storage.data_ptr(): storage.nbytes() // each.element_size()
            for values in (self.sequential, *self.ranks)
            for each in values.values()
            if isinstance(each, torch.Tensor)
            for storage in [each.untyped_storage()]
        }
        return sum(sizes.values())


def evaluated(problem: Problem, data_seed: int, seeds: Sequence[int]) -> Iterator[Evaluated]:
    """The results on doubles, then on the residues of each seed.

    The inputs are drawn by `data_seed`, and the same for all.  The doubles take the decisions.
    """
    values = _values(problem, data_seed)
    doubles = Doubles()
    yield _once(problem, values, data_seed, doubles)
    for seed in seeds:
        yield _once(problem, values, data_seed, Residues(seed, doubles.decisions.replay()))


def _once(
    problem: Problem, values: Mapping[str, torch.Tensor], seed: int, numbers: Numbers
) -> Evaluated:
    mode = ExactMode(numbers, semantics())
    entered = {name: mode.enter(each) for name, each in values.items()}
    held = _held(problem, entered, seed, mode)
    own = constants(problem.sequential, entered, problem.constants, numbers)
    mode.note(*(each for each in own.values() if each.is_floating_point()))
    places: dict[str, Place] = {}
    (sequential,) = evaluate(
        [problem.sequential], [own | entered], _ALONE, mode, problem.partial, places
    )
    ranks = evaluate(list(problem.ranks), held, problem.mesh, mode, problem.partial)
    return Evaluated(sequential, ranks, numbers, mode.met, places)


def _values(problem: Problem, seed: int) -> dict[str, torch.Tensor]:
    """The values of everything that the relation of inputs names, on the sequential side."""
    below = {**bounds(problem.sequential), **problem.below}
    nodes = problem.sequential.by_name
    marked = marks(problem)
    return {
        name: value_of(nodes[name], below, seed, marked.get(name, ())) for name in problem.inputs
    }


def _held(
    problem: Problem, entered: Mapping[str, torch.Tensor], seed: int, mode: ExactMode
) -> list[dict[str, torch.Tensor]]:
    """What each rank is given: its parts of inputs, and its constants."""

    def draw(name: str, shape: Sequence[int]) -> torch.Tensor:
        return mode.enter(floats(name, shape, seed))

    held: list[dict[str, Any]] = [{} for _ in problem.ranks]
    for name, relation in problem.inputs.items():
        parts = cut(name, entered[name], relation, problem.mesh, mode.numbers, draw)
        for values, part in zip(held, parts, strict=True):
            values.update(part)
    for values, graph in zip(held, problem.ranks, strict=True):
        own = constants(graph, values, problem.constants, mode.numbers)
        values.update(own)
        _check_shapes(graph, values)
        mode.note(*(each for each in values.values() if each.is_floating_point()))
    return held


def _check_shapes(graph: Graph, values: Mapping[str, torch.Tensor]) -> None:
    for node in graph.nodes:
        value = values.get(node.name)
        if value is not None and node.shape is not None and tuple(value.shape) != node.shape:
            raise InputRelationError(
                f"{graph.at(node)}: {shown(node.name)} has the shape {list(node.shape)}, but its "
                f"relation gives it {list(value.shape)}"
            )
