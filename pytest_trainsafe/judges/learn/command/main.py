"""`python -m pytest_trainsafe learn`: learns a pack from plain scripts, or checks one on a script.

python -m pytest_trainsafe learn --pack ours train.py --seed 0
torchrun --nproc-per-node 2 -m pytest_trainsafe learn --pack ours train.py --seed 1
python -m pytest_trainsafe learn --check ours train.py --seed 2
python -m pytest_trainsafe learn --pack theirs --from-traincheck invariants.json
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.judges.learn.check.ranks import RanksVerifier
from pytest_trainsafe.judges.learn.check.verifier import message as rule_text
from pytest_trainsafe.judges.learn.command.collect import (
    CollectError,
    Script,
    collect,
    kept_runs,
    rank,
    script_of,
    world,
)
from pytest_trainsafe.judges.learn.events.events import Listener
from pytest_trainsafe.judges.learn.packs.pack import Pack, write_pack
from pytest_trainsafe.judges.learn.packs.traincheck import read_traincheck
from pytest_trainsafe.judges.learn.registry import relations
from pytest_trainsafe.judges.learn.relation import Relation
from pytest_trainsafe.judges.learn.text import lines_of, message
from pytest_trainsafe.judges.learn.use.deploy import (
    FOLDER,
    load_packs,
    observation_of,
    pack_path,
)
from pytest_trainsafe.judges.learn.use.from_tests import learn_pack
from pytest_trainsafe.judges.learn.use.judged import judge_packs
from pytest_trainsafe.judges.learn.watch import Violation
from pytest_trainsafe.trace.run_spec import Observe

DONE, BROKEN, UNKNOWN = 0, 1, 2
#: The folder of the runs that a pack is learned from, beside the pack.
RUNS = "{}.runs"
#: The most lines of a file of TrainCheck's that are listed as left out.
_LISTED = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what was learned or found, on rank 0, and returns the exit status.

    0: a pack was written, or nothing in it is broken.  1: a rule is broken.  2: nothing can be
    said, because the script failed, or no rule applies, or an argument is refused.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    if not given.script and given.from_traincheck is None:
        parser.error("name a script, or a file with --from-traincheck")
    try:
        if given.from_traincheck is not None:
            return _import(given)
        script = script_of(given.script, given.root, given.axis)
        return _check(given, script) if given.check else _learn(given, script)
    except (TrainsafeError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return UNKNOWN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_trainsafe learn",
        description="Run a script, and learn invariants from it, or check packs on it.",
    )
    parser.add_argument("--pack", default="learned", metavar="NAME", help="The pack to write")
    parser.add_argument("--check", metavar="PACKS", help="Check these packs, with commas between")
    parser.add_argument("--root", type=Path, default=Path(), help="The folder of invariants/")
    parser.add_argument("--axis", default="dp", help="The axis of the ranks, as dp or tp")
    parser.add_argument("--from-traincheck", type=Path, metavar="FILE", help="Import TrainCheck's")
    parser.add_argument(
        "script", nargs=argparse.REMAINDER, metavar="SCRIPT ...", help="With its arguments"
    )
    return parser


def _learn(given: argparse.Namespace, script: Script) -> int:
    """Run the script, and learn the pack from all runs of it and of others that are kept."""
    below = given.root / FOLDER / RUNS.format(given.pack)
    collect(script, script.folder(below), Observe())
    if not rank():
        learned = learn_pack(given.pack, given.root, kept_runs(below))
        print("\n".join(lines_of(learned)))
    return DONE


def _check(given: argparse.Namespace, script: Script) -> int:
    known = relations()
    packs = load_packs(given.check.split(","), given.root, known)
    # All ranks write to one folder.
    with tempfile.TemporaryDirectory() as own:
        shared = given.root / FOLDER / RUNS.format("check") if world() > 1 else Path(own)
        folder = script.folder(shared)
        live = _live(packs, known, script, folder / "live")
        collect(script, folder, observation_of(packs, known), listeners=live)
        if rank():
            return DONE
        runs = [run for run in kept_runs(shared) if run.source == (script.program, script.setting)]
        if not runs:
            raise CollectError(f"{script.path}: the run was removed from {shared}")
        found = replace(judge_packs(runs[0], packs, known), what=script.program)
        shutil.rmtree(folder)
    if found.verdict == "pass":
        print("\n".join([f"{script.program}: keeps {given.check}", *found.not_compared]))
        return DONE
    print(message(found))
    return BROKEN if found.verdict == "fail" else UNKNOWN


def _live(
    packs: Sequence[Pack], known: Mapping[str, Relation], script: Script, folder: Path
) -> Sequence[Listener]:
    """What says while ranks train, and not only at the end, that a rule between them is broken."""
    if world() == 1:
        return ()
    said: set[str] = set()

    def report(violation: Violation) -> None:
        if violation.invariant.id not in said:
            said.add(violation.invariant.id)
            print(f"step {violation.step}: {rule_text(violation, known)}", file=sys.stderr)

    verifier = RanksVerifier(
        *(packs, known, folder, rank(), world(), report),
        program=script.program,
        setting=script.setting,
    )
    return [verifier]


def _import(given: argparse.Namespace) -> int:
    found = read_traincheck(given.from_traincheck)
    path = pack_path(given.pack, given.root)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_pack(found.pack, path, relations())
    left = found.left_out
    print(f"{len(found.pack.invariants)} invariants in {path}; {len(left)} were left out")
    for number, words, why in left[:_LISTED]:
        print(f"  line {number}: {words}: {why}")
    if len(left) > _LISTED:
        print(f"  and {len(left) - _LISTED} more")
    return DONE
