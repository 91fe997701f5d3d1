"""Judges clean programs under other numerics of the same machine, which must not cause failures.

Tolerances must not depend on the CPU on which they were tuned. A setting chooses, for example, the
CPU instructions of a library. For each setting, a separate process with its environment variables
judges the clean catalogue and random clean Points, and reports which numerics are in effect on a
rank; with `--pytest` it also runs a part of the suite. The first setting judges the random Points
of `--seed`, the second those of the next seed, and so on; with `--same-points` all judge the same
Points. With `--kept DIR` rows are stored there, so that an interrupted run continues: a setting
that was completed is not judged again.

    python benchmarks/bench_numerics.py --random 100 --jobs 2
    python benchmarks/bench_numerics.py --settings own avx2 --pytest tests/judges/test_ladder.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from _judged import Row, count, judged_rows, worst_of
from _measure import ROOT, finish, machine, show
from _random_points import DTYPES, MAX_RANKS, case_of, draw
from numerics_probe import probe

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.reference_models.corpus import RANKS, clean
from pytest_trainsafe.runs.group import Group
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case

#: The number of Cases that one session judges; it keeps their references until it is closed.
CASES_OF_A_SESSION = 50


@dataclass(frozen=True, slots=True)
class Numerics:
    """One setting: environment variables, the launcher, and the number of threads per rank."""

    environment: dict[str, str] = field(default_factory=dict)
    launcher: str = "auto"
    threads: int = 1


def _libraries(mkl: str, dnnl: str) -> Numerics:
    """The setting that restricts the instructions of oneMKL and oneDNN.

    oneDNN's variable has two names.
    """
    names = {"DNNL_MAX_CPU_ISA": dnnl, "ONEDNN_MAX_CPU_ISA": dnnl}
    return Numerics({"MKL_ENABLE_INSTRUCTIONS": mkl, **names})


SETTINGS: dict[str, Numerics] = {
    "own": Numerics(),
    "default": Numerics({"ATEN_CPU_CAPABILITY": "default"}),
    "avx2": Numerics({"ATEN_CPU_CAPABILITY": "avx2"}),
    "libraries-sse4": _libraries("SSE4_2", "SSE41"),
    "two-threads": Numerics(threads=2),
    "torchrun": Numerics(launcher="torchrun"),
    "avx512": Numerics({"ATEN_CPU_CAPABILITY": "avx512"}),
    "libraries-avx2": _libraries("AVX2", "AVX2"),
    "libraries-avx512": _libraries("AVX512", "AVX512_CORE"),
    "mkl-compatible": Numerics({"MKL_CBWR": "COMPATIBLE"}),
    "mkl-cbwr-avx2": Numerics({"MKL_CBWR": "AVX2"}),
}

#: The settings that run by default.
MAIN = ("own", "default", "avx2", "libraries-sse4", "two-threads", "torchrun")


def main() -> None:
    asked = _arguments()
    if asked.child:
        work(asked)
        return
    facts = machine()
    rows: list[Row] = []
    effects: dict[str, dict[str, Any]] = {}
    suites: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="trainsafe-numerics-") as temporary:
        folder = asked.kept or Path(temporary)
        with ThreadPoolExecutor(asked.jobs) as pool:
            judged = pool.map(lambda name: _judged(asked, name, folder), asked.settings)
            for name, found in zip(asked.settings, judged, strict=True):
                effects[name] = found[0]
                rows += [{**row, "setting": name} for row in found[1:]]
    if asked.pytest:
        suites = {name: suite(name, asked.pytest) for name in asked.settings}
    show_effects(effects)
    show_verdicts(rows, asked.settings)
    if suites:
        show("The suite", ["", "pytest"], [[name, line] for name, line in suites.items()])
    alarms = [row for row in rows if row["verdict"] in ("fail", "error")]
    for row in alarms:
        said = [*row.get("findings", []), row.get("error", "")][0].partition("\n")[0]
        print(f"{row['verdict']} {row['setting']} {row['dtype']} {row['name']}: {said}")
    finish("numerics", facts, {"effects": effects, "suites": suites, "rows": rows})
    sys.exit(bool(alarms) or any("failed" in line or "error" in line for line in suites.values()))


def _judged(asked: argparse.Namespace, name: str, folder: Path) -> list[dict[str, Any]]:
    """The numerics in effect under a setting, with the seconds that it took, then its rows."""
    seed = asked.seed + (0 if asked.same_points else asked.settings.index(name))
    folder.mkdir(parents=True, exist_ok=True)
    programs = "-".join(asked.programs)
    file = folder / f"{name}-{seed}-{asked.random}-{asked.dtype}-{programs}.jsonl"
    if not file.exists():
        began, part = time.perf_counter(), file.with_suffix(".part")
        part.unlink(missing_ok=True)
        subprocess.run(_child(asked, name, seed, part), env=_environment(name), check=True)
        effect, *rows = part.read_text().splitlines()
        seconds = round(time.perf_counter() - began)
        effect = json.dumps({**json.loads(effect), "seconds": seconds})
        part.write_text("".join(f"{line}\n" for line in [effect, *rows]))
        part.rename(file)
    return [json.loads(line) for line in file.read_text().splitlines()]


def _child(asked: argparse.Namespace, name: str, seed: int, file: Path) -> list[str]:
    words = [sys.executable, __file__, "--child", name, "--rows", str(file)]
    words += ["--random", str(asked.random), "--seed", str(seed)]
    words += ["--dtype", asked.dtype, "--programs", *asked.programs]
    return words


def _environment(name: str) -> dict[str, str]:
    """The environment of a setting, without the variables that other settings define."""
    given = SETTINGS[name].environment
    chosen = {key for each in SETTINGS.values() for key in each.environment}
    kept = {key: value for key, value in os.environ.items() if key not in chosen}
    path = os.pathsep.join(filter(None, [str(ROOT / "benchmarks"), kept.get("PYTHONPATH", "")]))
    return {**kept, **given, "PYTHONPATH": path}


def work(asked: argparse.Namespace) -> None:
    """Run in the process of a setting: write its numerics, then a row for each Case and rung."""
    numerics = SETTINGS[asked.child]
    if numerics.threads == 2:
        import two_threads  # noqa: F401  # for its effect
    settings = Settings(device="cpu", launcher=numerics.launcher, max_world_size=MAX_RANKS)
    with open(asked.rows, "a", encoding="utf-8", buffering=1) as file:
        cases = list(_cases(asked, settings))
        for first in range(0, max(len(cases), 1), CASES_OF_A_SESSION):
            with tempfile.TemporaryDirectory(prefix="trainsafe-numerics-") as temporary:
                session = Session(settings, Path(temporary))
                try:
                    if not first:
                        (effect,) = Group(session, None).run(probe, world_size=1)
                        file.write(json.dumps(effect) + "\n")
                    for name, case in cases[first : first + CASES_OF_A_SESSION]:
                        for row in judged_rows(session, case):
                            file.write(json.dumps({"name": name, **row}) + "\n")
                finally:
                    session.close()


def _cases(asked: argparse.Namespace, settings: Settings) -> Iterator[tuple[str, Case]]:
    """The clean catalogue, then random clean Points."""
    for program in asked.programs:
        for case in clean(program, settings, asked.dtype):
            yield f"{program} {case.point} {dict(case.arguments)}", case
    for index in range(asked.random):
        drawn = draw(asked.seed, index, Counter())
        case, _ = case_of(drawn, settings)
        yield f"random {drawn}", replace(case, settings=settings._replace(seed=drawn.seed))


def suite(name: str, words: Sequence[str]) -> str:
    """Run a part of the suite under a setting; returns the last line of pytest's output."""
    numerics = SETTINGS[name]
    options = ["-p", "two_threads"] if numerics.threads == 2 else []
    options += ["--trainsafe-launcher", numerics.launcher] if numerics.launcher != "auto" else []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *words]
    done = subprocess.run(
        command, cwd=ROOT, env=_environment(name), capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stdout[-4000:], file=sys.stderr)
    return (done.stdout.strip().splitlines() or [f"pytest ended with {done.returncode}"])[-1]


def show_effects(effects: dict[str, dict[str, Any]]) -> None:
    """Print the numerics in effect on a rank, and which results differ from those of "own"."""
    own = effects.get("own")
    table = []
    for name, effect in effects.items():
        wanted = SETTINGS[name]
        good = wanted.environment.items() <= effect["environment"].items()
        good &= effect["threads"] == wanted.threads
        good &= wanted.launcher != "torchrun" or effect["launcher"] == "torchrun"
        asked = wanted.environment.get("ATEN_CPU_CAPABILITY")
        good &= asked is None or effect["capability"].lower().replace("no avx", "default") == asked
        other = [key for key in ("aten", "mkl", "dnnl") if own and effect[key] != own[key]]
        row = ["yes" if good else "NO", effect["capability"], effect["threads"]]
        table.append([name, *row, " ".join(other) or "none", effect["seconds"]])
    columns = ["", "in effect", "capability", "threads", "other results", "seconds"]
    show("The settings, as a rank sees them", columns, table)


def show_verdicts(rows: Sequence[Row], settings: Sequence[str]) -> None:
    """Print the worst ratios by setting and dtype, and the number of each verdict."""
    table = []
    for name in settings:
        own = [row for row in rows if row["setting"] == name]
        by_dtype = ([row for row in own if row["dtype"] == dtype] for dtype in DTYPES)
        ratios = (max(map(worst_of, each), default=(0.0, ""))[0] for each in by_dtype)
        counts = (count(own, verdict) for verdict in ("fail", "inconclusive", "error"))
        table.append([name, len(own), *(f"{ratio:.2f}" for ratio in ratios), *counts])
    columns = ["", "judged", *DTYPES, "false alarms", "inconclusive", "errors"]
    show("Worst error / allowed by dtype, and verdicts", columns, table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), default=list(MAIN))
    parser.add_argument("--programs", nargs="*", choices=sorted(RANKS), default=sorted(RANKS))
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="The last rung")
    parser.add_argument("--random", type=int, default=50, help="Random clean Points")
    parser.add_argument("--seed", type=int, default=0, help="The seed of the random Points")
    parser.add_argument("--same-points", action="store_true", help="One seed for all settings")
    parser.add_argument("--jobs", type=int, default=1, help="Settings judged at a time")
    parser.add_argument("--kept", type=Path, metavar="DIR", help="Keep rows, and use those kept")
    parser.add_argument("--pytest", nargs="+", metavar="WORD", help="Also run pytest with these")
    parser.add_argument("--quick", action="store_true", help="One program, few Points")
    parser.add_argument("--child", choices=list(SETTINGS), help=argparse.SUPPRESS)
    parser.add_argument("--rows", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.quick:
        asked.programs, asked.random = ["lstm"], 3
    return asked


if __name__ == "__main__":
    main()
