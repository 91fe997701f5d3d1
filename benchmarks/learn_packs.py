"""Learns the packs that the package ships, from its healthy programs: `make packs`.

Every program runs in all of its configurations, on one rank and on several.  The runs are cached
in `.bench`, so that a second call does not repeat them.  `--pack` observes only the programs that
its recipe takes.  `--check` writes nothing, and fails if a
pack differs from the one that would be learned.  `--show` prints the rules, and how many others
were rejected for which reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence

import torch
from _kept_runs import KeptRuns
from _measure import ROOT
from _observed_runs import APIS, load_toolkit
from _rungs import session

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.invariants.recipes import DEEPSPEED_APIS, RECIPES, Recipe
from pytest_trainsafe.judges.learn.packs.pack import SUFFIX, Pack, pack_text, write_pack
from pytest_trainsafe.judges.learn.registry import relations
from pytest_trainsafe.judges.learn.relation import Relation
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.judges.learn.use.general import General, general
from pytest_trainsafe.reference_models import deepspeed_gpt, llama, moe
from pytest_trainsafe.reference_models.healthy import DEEPSPEED, PROGRAMS, find, program

FOLDER = ROOT / "invariants"

#: Points of the reference programs from which packs are learned: Llama, MoE and DeepSpeed's GPT.
#: The other reference programs are used only in tests.
POINTS: Sequence[Mapping[str, int]] = ({}, {"dp": 2}, {"tp": 2}, {"dp": 2, "tp": 2})

#: Programs of two ranks that also run on one rank, because their ranks do not send to each other.
#: With them, a program that marks its steps by the context does not always have several ranks.
ONE_RANK = (
    *("replicas", "replicas_language", "replicas_images", "sharded_states", "tensor_parallel"),
    *("tensor_parallel_mixed", "sharded.classifier", "sharded.language", "sharded.images"),
)

#: The programs that take no context.  The others mark their steps by it.
UNMARKED = frozenset(each.name for each in (*PROGRAMS, *DEEPSPEED) if not each.axis)


def observed(kept: KeptRuns, recipes: Sequence[Recipe] = RECIPES) -> Iterator[ObservedRun]:
    """Every run that the packs of these recipes are learned from."""
    for each in PROGRAMS:
        if not any(_takes(recipe, each.name) for recipe in recipes):
            continue
        yield kept.healthy(each)
        for seed, variant in enumerate(each.variants, 1):
            yield kept.healthy(each, seed, variant)
        if each.name in ONE_RANK:
            yield kept.of_ranks(each.name, program(each), {})
    for name, train in (("llama", llama.train), ("moe", moe.train)):
        for sizes in POINTS:
            if any(_takes(recipe, _named(name, sizes)) for recipe in recipes):
                yield kept.of_ranks(_named(name, sizes), train, sizes)
    # The plain training that DeepSpeed's GPT is compared with.
    if any(_takes(recipe, "plain_gpt") for recipe in recipes):
        arguments = {"framework": "torch"}
        yield kept.of_ranks("plain_gpt", deepspeed_gpt.train, {"dp": 2}, APIS, 0, arguments)
    if any(_takes(recipe, "deepspeed_gpt") for recipe in recipes):
        yield from of_deepspeed(kept)


def of_deepspeed(kept: KeptRuns) -> Iterator[ObservedRun]:
    """The runs of programs that train with DeepSpeed, of which DeepSpeed is observed too."""
    apis = (*APIS, *DEEPSPEED_APIS)
    of_train: Sequence[Mapping[str, object]] = (
        *({"dp": 2, "zero": zero} for zero in (0, 1, 2, 3)),
        {"dp": 2, "zero": 1, "dtype": "bfloat16"},
        {"tp": 2},
        {"tp": 2, "dp": 2, "zero": 1},
    )
    for sizes in of_train:
        yield kept.of_ranks("deepspeed_gpt", deepspeed_gpt.train, sizes, apis)
    stages: Sequence[Mapping[str, object]] = ({"pp": 2}, {"pp": 2, "dp": 2, "zero": 1})
    for sizes in stages:
        yield kept.of_ranks("deepspeed_gpt.pipeline", deepspeed_gpt.pipeline, sizes, apis)
    yield kept.of_ranks("deepspeed_gpt.moe", deepspeed_gpt.moe, {"dp": 2, "ep": 2}, apis)
    yield kept.of_ranks("deepspeed_gpt.ulysses", deepspeed_gpt.ulysses, {"cp": 2}, apis)
    tied, staged = (program(find(f"deepspeed.{name}")) for name in ("tied", "staged"))
    yield kept.of_ranks("deepspeed.tied", tied, {"pp": 3}, apis)
    yield kept.of_ranks("deepspeed.staged", staged, {"pp": 2, "dp": 2}, apis, 0, {"stage": 1})
    # Last of all: one program imports DeepSpeed into this process.
    for each in DEEPSPEED:
        for seed, variant in enumerate(({}, *each.variants)):
            yield kept.healthy(each, seed, variant, apis)


def complete(run: ObservedRun) -> ObservedRun:
    """The same run.  Raises ValueError if a rank ended no step, since then the program failed."""
    for table in run.tables:
        if not len(table.steps["step"]):
            raise ValueError(f"{run.program}: rank {table.rank} ended no step")
    return run


def learned(
    recipe: Recipe, runs: Sequence[ObservedRun], rules: Mapping[str, Relation]
) -> tuple[Pack, General]:
    """The pack of a recipe, and what was left out."""
    chosen = [run for run in runs if _takes(recipe, run.program)]
    marked = {run.program for run in chosen} - UNMARKED
    found = general(chosen, rules, recipe.programs or None, marked)
    programs = {run.program: run.versions for run in chosen}
    invariants = tuple(each for each in found.invariants if recipe.takes(each))
    return Pack(recipe.name, invariants, programs), found


def main() -> int:
    """Observe, learn, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="Compare with the packs that exist")
    parser.add_argument("--show", action="store_true", help="Print every rule")
    parser.add_argument("--pack", choices=[each.name for each in RECIPES], help="One pack only")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    load_toolkit()
    recipes = [each for each in RECIPES if asked.pack in (None, each.name)]
    with session(Settings()) as opened:
        kept = KeptRuns(opened)
        runs = [complete(run) for run in observed(kept, recipes)]
    print(f"{len(runs)} runs, {kept.made} of them observed now")
    rules, stale = relations(), []
    for recipe in recipes:
        pack, found = learned(recipe, runs, rules)
        path = FOLDER / f"{recipe.name}{SUFFIX}"
        print(f"{recipe.name}: {len(pack.invariants)} invariants; left out: {found.left_out}")
        if asked.show:
            for each in pack.invariants:
                says = rules[each.claim.relation].explain(each.claim).sentence
                print(f"  {says}, when {each.precondition} ({each.programs} programs)")
        text = pack_text(pack, rules)
        if not asked.check:
            write_pack(pack, path, rules)
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
    if stale:
        print(f"not what the programs show: {', '.join(stale)}; run make packs, and review")
    return bool(stale)


def _takes(recipe: Recipe, program: str) -> bool:
    """Whether a program's runs may support or contradict the invariants of a pack."""
    names = {*recipe.programs, *recipe.beside}
    return (not names or program in names) and program not in recipe.without


def _named(name: str, sizes: Mapping[str, int]) -> str:
    return " ".join([name, *(f"{axis}={size}" for axis, size in sizes.items())])


if __name__ == "__main__":
    sys.exit(main())
