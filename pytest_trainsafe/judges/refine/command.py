"""`python -m pytest_trainsafe refine`: proves graphs in files, or checks a certificate."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_trainsafe.errors import ArgumentError, TrainsafeError
from pytest_trainsafe.judges.refine.certificate.checker import check
from pytest_trainsafe.judges.refine.certificate.content import read_certificate
from pytest_trainsafe.judges.refine.graphs.load import graph_of
from pytest_trainsafe.judges.refine.judge import judge
from pytest_trainsafe.judges.refine.layouts import layouts, lines
from pytest_trainsafe.judges.refine.problem.declared import read_declaration, stated_problem
from pytest_trainsafe.judges.refine.text import message, proved

PROVED, REFUTED, UNKNOWN = 0, 1, 2
_MOST_RANKS = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the verdict and returns the exit status.

    0: proved, or the certificate holds.  1: refuted.  2: nothing can be said, or a file or the
    certificate is refused.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        if given.check is not None:
            return _check(given)
        return _layouts(given) if given.layouts else _prove(given)
    except (TrainsafeError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return UNKNOWN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_trainsafe refine",
        description="Prove that the graphs of all ranks compute what a sequential graph computes.",
    )
    parser.add_argument("sequential", metavar="SEQUENTIAL", help="The sequential graph, a file")
    parser.add_argument("programs", metavar="RANK", nargs="+", help="The ranks' graphs, in order")
    parser.add_argument("--relation", type=Path, help="The relation of inputs, a YAML file")
    parser.add_argument("--certificate", type=Path, metavar="OUT", help="Where to write the proof")
    parser.add_argument(
        "--ranks",
        dest="count",
        type=int,
        metavar="N",
        help="RANK is the program of each of N ranks",
    )
    parser.add_argument(
        "--layouts", action="store_true",
        help="Print how the ranks hold each tensor, by rules that decide nothing, and no proof",
    )  # fmt: skip
    parser.add_argument(
        "--second-engine", action="store_true", help="Ask z3 about each stage of a proof, too"
    )
    parser.add_argument(
        "--check", type=Path, metavar="CERTIFICATE", help="Check this certificate of the graphs"
    )
    return parser


def _ranks(given: argparse.Namespace) -> list[Path]:
    """The file of each rank; one file may be the program of all."""
    files = [Path(each) for each in given.programs]
    count: int | None = given.count
    if count is None:
        return files
    if len(files) != 1 or not 1 <= count <= _MOST_RANKS:
        raise ArgumentError(
            f"--ranks was given {count} with {len(files)} files; give one file, the program "
            f"of all ranks, and at most {_MOST_RANKS}"
        )
    return files * count


def _check(given: argparse.Namespace) -> int:
    certificate = read_certificate(given.check)
    count = check(
        certificate,
        graph_of(Path(given.sequential), "sequential"),
        [graph_of(each, str(each)) for each in _ranks(given)],
    )
    print(f"the certificate holds: {count} relations were computed on fresh random values")
    return PROVED


def _layouts(given: argparse.Namespace) -> int:
    declared = read_declaration(given.relation) if given.relation else None
    ranks = [graph_of(each, str(each)) for each in _ranks(given)]
    problem = stated_problem(graph_of(Path(given.sequential), "sequential"), ranks, declared)
    print("\n".join(lines(layouts(problem), ranks[0])))
    return PROVED


def _prove(given: argparse.Namespace) -> int:
    ranks = _ranks(given)
    second: bool = given.second_engine
    judgement = judge(Path(given.sequential), ranks, given.relation, second=second)
    if judgement.certificate is None:
        print(message(judgement))
        return REFUTED if judgement.verdict == "fail" else UNKNOWN
    print(proved(judgement.certificate))
    if given.certificate is not None:
        judgement.certificate.save(given.certificate)
    return PROVED
