"""Proofs of whole graphs: CPU seconds by part, memory, and growth in layers and in tp.

    python benchmarks/bench_refine.py [--layers 1 2 4 8] [--tp 2 4 8] [--model gpt llama]
    python benchmarks/bench_refine.py --forward
    python benchmarks/bench_refine.py --files SEQUENTIAL RANK... --relation FILE

Without files, it captures a whole training step of the reference models: forward, backward,
reduction of gradients and AdamW.  With `--forward`, it captures the forward alone, in the sizes of
a small model of use, with the batch as an input; beside it are the seconds of GraphGuard's paper
for forwards of the same structure.  Each configuration runs in a process of its own, on one thread,
and `--jobs` of them side by side.
The columns are the CPU seconds of the capture or parse, of finding smaller sizes, of evaluating
both sides once on doubles and once on exact numbers, of finding relations, of the whole proof, and
of the independent check; beside them is the plain float64 evaluation of the same graphs, which
proves nothing and finds no relation, and z3: the CPU seconds of its processes, and how many of the
stages it closes.  z3 is asked about configurations of at most `--z3` layers.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from pytest_trainsafe.judges.one_thread import one_thread
from pytest_trainsafe.judges.refine.certificate.checker import check
from pytest_trainsafe.judges.refine.certificate.write import certificate_of
from pytest_trainsafe.judges.refine.evaluate.run import evaluated
from pytest_trainsafe.judges.refine.graphs.load import graph_of
from pytest_trainsafe.judges.refine.problem.declared import read_declaration, stated_problem
from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.prove import Proof, prove
from pytest_trainsafe.judges.refine.search.find import Finder
from pytest_trainsafe.judges.refine.search.index import Index
from pytest_trainsafe.judges.refine.sizes.shrink import affordable, shrunk
from pytest_trainsafe.judges.refine.solver.stages import stages
from pytest_trainsafe.judges.refine.solver.workers import Limits, answers
from pytest_trainsafe.reference_models import gpt, llama
from pytest_trainsafe.reference_models.captured import Program, captured

MODELS: dict[str, Program] = {"gpt": gpt.train, "llama": llama.train}
COLUMNS = ("read", "shrink", "doubles", "exact", "relate", "proof", "check", "MiB", "nodes", "z3",
           "closed", "paper")  # fmt: skip
LAYERS = (1, 2, 4, 8)
#: Seconds of GraphGuard on 16 cores, by tp, for each of LAYERS; 0 where the paper states none.
PAPER: dict[str, dict[int, tuple[float, ...]]] = {
    "gpt": {
        2: (13.6, 20.6, 35.4, 68.7), 4: (18.9, 29.4, 49.9, 94.7), 6: (27.3, 39.9, 65.2, 123.1),
        8: (52.8, 68.4, 102.8, 174.4),
    },
    "llama": {2: (10.0, 0, 0, 95.5), 4: (13.7, 0, 0, 146.8), 8: (20.8, 0, 0, 237.0)},
}  # fmt: skip
Result = TypeVar("Result")


def timed(run: Callable[[], Result]) -> tuple[float, Result]:
    start = time.process_time()
    result = run()
    return time.process_time() - start, result


def of_model(name: str, tp: int, layers: int, forward: bool) -> Problem:
    """The graphs of a step or of a forward; GPT's ranks cut the sequence too, as the paper's do."""
    sizes: dict[str, Any] = {
        "hidden": 4 * tp, "heads": 2 * tp, "seq_len": 2 * tp, "vocabulary": 4 * tp,
    }  # fmt: skip
    if forward:
        sizes = {"hidden": 768, "heads": 24, "seq_len": 192, "vocabulary": 240}
    if name == "llama":
        sizes["kv_heads"] = 8 if forward else tp  # A rank computes whole heads.
    axes = {"tp": tp, "sp": name == "gpt" or not forward}
    found = captured(
        MODELS[name], axes, forward=forward, layers=layers, batch_size=2, microbatches=1, **sizes
    )
    return stated_problem(found.sequential, found.ranks, found.relation)


def of_files(files: Sequence[Path], relation: Path) -> Problem:
    sequential, *ranks = (graph_of(each, each.name) for each in files)
    return stated_problem(sequential, ranks, read_declaration(relation))


def measured(read: Callable[[], Problem], z3: bool) -> str:
    """The row of one configuration; with `z3`, it is asked about each stage."""
    reading, problem = timed(read)
    shrinking, small = 0.0, problem
    if not affordable(problem):
        shrinking, (small, _) = timed(lambda: shrunk(problem))
    runs = evaluated(small, 0, [1])
    doubles, _ = timed(lambda: next(runs))
    exact, run = timed(lambda: next(runs))

    def relate() -> int:
        finder = Finder(Index(run.ranks, small.mesh, run.numbers))
        values = run.sequential.items()
        return sum(len(finder.relations(n, x)) for n, x in values if isinstance(x, torch.Tensor))

    relating, _ = timed(relate)
    proving, proof = timed(lambda: prove(problem))
    if not isinstance(proof, Proof):
        return f"refuted at {proof.node}"
    certificate = certificate_of(proof, problem, 0)
    checking, _ = timed(lambda: check(certificate, problem.sequential, problem.ranks))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    times = (reading, shrinking, doubles, exact, relating, proving, checking)
    nodes = len(problem.sequential.nodes) + sum(len(each.nodes) for each in problem.ranks)
    row = " | ".join([*(f"{each:.2f}" for each in times), f"{memory:.0f}", str(nodes)])
    if not z3:
        return f"{row} | - | -"
    said = answers(list(stages(proof.problem, proof.relations)), Limits())
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    closed = sum(each.verdict == "equal" for each in said)
    return f"{row} | {children.ru_utime + children.ru_stime:.1f} | {closed}/{len(said)}"


def alone(model: str, tp: int, layers: int, given: argparse.Namespace) -> str:
    """The row of one configuration, measured in a process of its own."""
    arguments = ["--model", model, "--tp", str(tp), "--layers", str(layers), "--one",
                 "--z3", str(given.z3), *(["--forward"] if given.forward else [])]  # fmt: skip
    row = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = row.stdout.strip() or row.stderr.strip().splitlines()[-1]
    stated = dict(zip(LAYERS, PAPER[model].get(tp, ()), strict=False)) if given.forward else {}
    return f"| {model} tp={tp}, layers {layers} | {said} | {stated.get(layers) or '-'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--layers", nargs="+", type=int, default=list(LAYERS))
    parser.add_argument("--tp", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--forward", action="store_true", help="The forward alone")
    parser.add_argument("--jobs", type=int, default=1, help="Configurations side by side")
    parser.add_argument("--files", nargs="+", type=Path, help="Graph files, the sequential first")
    parser.add_argument("--relation", type=Path, help="The relation of the files' inputs")
    parser.add_argument("--z3", type=int, default=1, help="The most layers that z3 is asked about")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        model, tp, layers = given.model[0], given.tp[0], given.layers[0]
        with one_thread():
            print(measured(lambda: of_model(model, tp, layers, given.forward), layers <= given.z3))
        return
    print(f"torch {torch.__version__}; CPU seconds on one thread\n")
    print(f"| graphs | {' | '.join(COLUMNS)} |")
    print("|---" * (len(COLUMNS) + 1) + "|", flush=True)
    if given.files:
        with one_thread():
            row = measured(lambda: of_files(given.files, given.relation), given.z3 > 0)
        print(f"| files | {row} | - |")
        return
    with ThreadPoolExecutor(given.jobs) as pool:
        waiting = [
            pool.submit(alone, model, tp, layers, given)
            for model in given.model for tp in given.tp for layers in given.layers
        ]  # fmt: skip
        for each in waiting:
            print(each.result(), flush=True)


if __name__ == "__main__":
    main()
