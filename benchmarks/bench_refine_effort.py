"""How many operators each model adds to the table of semantics, and how many lines each has.

    python benchmarks/bench_refine_effort.py

Captured training steps are proved one after the other.  An operator counts for the first model that
meets it.  Its lines are those of the function that states what it computes; an operator that only
moves elements has none.  Functions that several operators share count once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pytest_trainsafe.arithmetic import Semantics
from pytest_trainsafe.judges.one_thread import one_thread
from pytest_trainsafe.judges.refine.evaluate.kernels import semantics
from pytest_trainsafe.judges.refine.problem.declared import stated_problem
from pytest_trainsafe.judges.refine.prove import Proof, prove
from pytest_trainsafe.reference_models import gpt, llama, moe
from pytest_trainsafe.reference_models.captured import Program, captured

SIZES: dict[str, Any] = {"layers": 1, "hidden": 8, "heads": 4, "seq_len": 8, "batch_size": 2,
                         "vocabulary": 16, "microbatches": 2}  # fmt: skip
MODELS: dict[str, tuple[Program, dict[str, Any]]] = {
    "GPT tp=2 sp": (gpt.train, {"tp": 2, "sp": True}),
    "Llama tp=2 sp": (llama.train, {"tp": 2, "sp": True}),
    "MoE tp=2": (moe.train, {"tp": 2}),
    "GPT dp=2 zero=1": (gpt.train, {"dp": 2, "zero": 1}),
}


def lines(rule: Callable[..., object]) -> int:
    """The lines of a function, without its documentation and empty ones."""
    text = inspect.getsource(rule)
    documented = (inspect.getdoc(rule) or "").count("\n") + 1 if rule.__doc__ else 0
    return len([line for line in text.splitlines() if line.strip()]) - documented


def main() -> None:
    table = semantics()
    known: set[str] = set()
    seen: set[object] = set()
    print("| model | operators | new ones | that compute | their lines | the longest |")
    print("|---|---|---|---|---|---|")
    for name, (program, axes) in MODELS.items():
        found = captured(program, axes, **SIZES)
        proof = prove(stated_problem(found.sequential, found.ranks, found.relation))
        assert isinstance(proof, Proof), name
        met = set(proof.met)
        new = met - known
        known |= met
        rules = [
            (each, rule)
            for each in sorted(new)
            if (rule := _rule(table.get(each))) is not None and rule not in seen
        ]
        seen |= {rule for _, rule in rules}
        counts = sorted((lines(rule), each) for each, rule in rules)
        longest = f"{counts[-1][1]}: {counts[-1][0]}" if counts else "-"
        total = sum(count for count, _ in counts)
        print(f"| {name} | {len(met)} | {len(new)} | {len(rules)} | {total} | {longest} |")


def _rule(found: Semantics | None) -> Any:
    return None if found is None else found.rule


if __name__ == "__main__":
    with one_thread():
        main()
