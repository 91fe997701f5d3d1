"""Both tools of bench_traincheck.py on one script, in processes that are measured."""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _measure import folder_size
from _traincheck_scripts import ON_TWO_RANKS

#: The most invariants of selective runs.
CHOSEN = 100

#: The sampled ways record the first WARM_UP steps, and then every EVERY-th step.
EVERY, WARM_UP = 10, 2

OWN = Path(__file__).resolve().parent / "observed_script.py"

#: Starts a command twice, as two ranks.
RANKS = 'RANK=0 "$@" & RANK=1 "$@" & wait'

Figures = dict[str, Any]
Command = list[str | Path]


@dataclass(frozen=True)
class Child:
    """What a process, with those it waited for, said and took.

    `killed` says that it used more CPU time than it may.
    """

    said: str
    seconds: float
    peak_mib: float
    killed: bool

    def step_ms(self) -> float:
        """The CPU milliseconds of a step after the first two: the mean of all ranks.

        Not the median: some machines count CPU time in units of 4 ms, and a step of which only
        every tenth is recorded costs what ten steps cost together.
        """
        means = [sum(each[2:]) / len(each[2:]) for each in self._steps()]
        return 1e3 * sum(means) / len(means)

    def _steps(self) -> list[list[float]]:
        """The CPU seconds of each step, on each rank."""
        found = [json.loads(each) for each in re.findall(r"MOMENTS (\[.*?\])", self.said)]
        if not found:
            raise SystemExit(f"a script failed, so nothing is measured:\n{self.said[-3000:]}")
        return [[end - begin for begin, end in itertools.pairwise(each)] for each in found]

    def report(self) -> Figures:
        """The figures that observed_script.py reports."""
        found = re.findall(r"REPORT (\{[^{}]*\})", self.said)
        if not found:
            raise SystemExit(f"our side failed, so nothing is measured:\n{self.said[-3000:]}")
        figures: Figures = json.loads(found[0])
        return figures


def child(command: Command, folder: Path, steps: int, limit: int = 3600) -> Child:
    """Run a command in a folder to its end, or until it has used `limit` CPU seconds.

    A process inherits its peak from the one that starts it, so this one must not import torch.
    """
    (folder / "store").unlink(missing_ok=True)
    set_up = {"STEPS": str(steps), "STORE": str(folder / "store"), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | set_up | {"MKL_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        seconds = used.ru_utime + used.ru_stime
        return Child(output.read(), seconds, used.ru_maxrss / 1024, seconds >= limit)


def on_ranks(name: str, command: Command) -> Command:
    """The command that runs `command` on the ranks of a program."""
    return ["bash", "-c", RANKS, "ranks", *command] if name in ON_TWO_RANKS else command


class Ours:
    """This package, on one script."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.script = name, folder, folder / f"{name.lower()}.py"

    def bare(self, steps: int) -> Child:
        return child(on_ranks(self.name, [sys.executable, self.script]), self.folder, steps)

    def observed(self, way: str, steps: int, target: str) -> Child:
        """Run the script observed; `target` is the folder of its trace."""
        found = fresh(self.folder / target)
        pack: Command = [self.folder / "ours.pack"] if way != "full" else []
        command: Command = [sys.executable, OWN, "observe", way, self.script, found, *pack]
        return child(on_ranks(self.name, command), self.folder, steps)

    def inferred(self, source: str, pack: str) -> Figures:
        """Learn from a trace."""
        return self._own("learn", source, pack)

    def checked(self, source: str) -> Figures:
        """Check all learned invariants on a trace."""
        return self._own("check", source, "ours.pack")

    def _own(self, what: str, source: str, pack: str) -> Figures:
        command: Command = [sys.executable, OWN, what, self.folder / source, self.folder / pack]
        ran = child(command, self.folder, 0)
        return {**ran.report(), "all_seconds": ran.seconds, "peak_mib": ran.peak_mib}


class Theirs:
    """TrainCheck, on one script."""

    def __init__(self, name: str, folder: Path, peer: Path, limit: int) -> None:
        self.name, self.folder, self.script = name, folder, folder / f"{name.lower()}.py"
        self.programs, self.limit = peer / "bin", limit
        help_only: Command = [self.programs / "traincheck-infer", "--help"]
        self.start = child(help_only, folder, 0).seconds

    def bare(self, steps: int) -> Child:
        command = on_ranks(self.name, [self.programs / "python", self.script])
        return child(command, self.folder, steps)

    def observed(self, way: str, steps: int, target: str) -> Child:
        """Run the script with collection; `target` is the folder of its trace."""
        command: Command = [self.programs / "traincheck-collect", "-p", self.script]
        more: Command = ["--models-to-track", "model", "--output-dir", fresh(self.folder / target)]
        if self.name in ON_TWO_RANKS:
            start = self.folder / "ranks.sh"
            python = f"{self.programs / 'python'} {self.script.name}"
            start.write_text(f"RANK=0 {python} & RANK=1 {python} & wait\n")
            more += ["-s", start, "--model-tracker-style", "subclass"]
        if way != "full":
            every, warm_up = (EVERY, WARM_UP) if way == "sampled" else (1, steps)
            sample: Command = ["--sampling-interval", str(every), "--warm-up-steps", str(warm_up)]
            more += ["-i", self.folder / "chosen.json", *sample]
        return child([*command, *more], self.folder, steps)

    def inferred(self, source: str, invariants: str) -> Figures:
        """Infer from a trace."""
        target = self.folder / invariants
        command: Command = ["-f", self.folder / source, "-o", target]
        found = self._tool("traincheck-infer", command)
        if found["killed"]:
            return found
        lines = target.read_text().splitlines()
        return {**found, "invariants": len(lines), "records": records_of(self.folder / source)}

    def checked(self, source: str) -> Figures:
        """Check all learned invariants on a trace."""
        results = fresh(self.folder / "results")
        files: Command = ["-f", self.folder / source, "-i", self.folder / "theirs.json"]
        found = self._tool("traincheck-check", [*files, "--no-html-report", "-o", results])
        if found["killed"]:
            return found
        said = found.pop("said")
        counts = {
            key: int(re.findall(rf"Total {word}: (\d+)/", said)[0])
            for key, word in {
                "failed": "failed invariants",
                "idle": "invariants that are not triggered",
            }.items()
        }
        return {**found, **counts}

    def choose(self) -> None:
        """Write 100 of the learned invariants, spread over their order, as the ones to collect."""
        lines = (self.folder / "theirs.json").read_text().splitlines()
        every = max(1, len(lines) // CHOSEN)
        (self.folder / "chosen.json").write_text("\n".join(lines[::every][:CHOSEN]) + "\n")

    def _tool(self, tool: str, arguments: Command) -> Figures:
        ran = child([self.programs / tool, *arguments], self.folder, 0, self.limit)
        seconds = ran.seconds - self.start
        figures = {"seconds": seconds, "all_seconds": ran.seconds, "peak_mib": ran.peak_mib}
        return {**figures, "killed": ran.killed, "said": ran.said}


def fresh(folder: Path) -> Path:
    """This folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def traces_of(folder: Path) -> list[Path]:
    """The files of the peer's trace; its log of what it instruments is not one."""
    names = ("trace_", "proxy_log.json")
    return [file for file in folder.iterdir() if file.name.startswith(names)]


def records_of(folder: Path) -> int:
    """The number of records of the peer's trace, which has one in each line."""
    return sum(file.read_bytes().count(b"\n") for file in traces_of(folder))


def kib_of(folder: Path) -> float:
    """The KiB of a trace of either tool."""
    own = folder_size(folder) if any(folder.glob("*.bin")) else 0
    return (own or sum(file.stat().st_size for file in traces_of(folder))) / 1024
