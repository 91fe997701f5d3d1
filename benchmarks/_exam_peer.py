"""TrainCheck on one program of the exam, in processes that are measured.

A program becomes a script that calls its `train`.  TrainCheck finds models by the names of
variables, so a bare run first tells which variables of the program's own functions are modules.
Every stage keeps its figures in the folder of the program, and is not repeated.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from _traincheck_sides import Child, Command, child, fresh, traces_of
from exam_cases import Case, Program

#: The relations on the order of calls, which TrainCheck's tutorial tells its users to ignore when
#: the invariants are from few runs.
ORDERS = frozenset({"FunctionCoverRelation", "FunctionLeadRelation"})

#: How TrainCheck follows variables: its default, its other way, and not at all.  The next one is
#: taken if a program fails with one.
STYLES = ("proxy", "subclass", "none")

_FOLLOWED = """\
import sys as _sys

_FOUND = set()


def _seen(frame, event, value):
    if event == "return" and frame.f_code.co_filename == __file__:
        module = _sys.modules["torch"].nn.Module if "torch" in _sys.modules else ()
        _FOUND.update(name for name, each in frame.f_locals.items() if isinstance(each, module))


_sys.setprofile(_seen)
"""
_SAID = """
_sys.setprofile(None)
print("MODELS", *sorted(_FOUND), flush=True)
"""


@dataclass
class Verdict:
    """What TrainCheck says of one program.

    `twin` and `bug` count the violated invariants by relation: those that the twin (or the program
    without a mistake) violates, and those that the mistake violates and the twin does not.
    `unfinished` says why there is no verdict.  `seconds` are CPU seconds by stage.
    """

    program: str
    faulty: bool
    world: int
    unfinished: str = ""
    style: str = ""
    models: list[str] = field(default_factory=list)
    rules: int = 0
    twin: dict[str, int] = field(default_factory=dict)
    bug: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class Unfinished(Exception):
    """A stage that failed or took too long."""


class ExamPeer:
    """TrainCheck on a program, in a folder of its own."""

    def __init__(self, of: Case | Program, folder: Path, source: str, peer: Path, limit: int):
        self._of, self._source, self._limit = of, source, limit
        self._folder, self._tools = folder, peer / "bin"
        folder.mkdir(parents=True, exist_ok=True)
        self._verdict = Verdict(of.name, isinstance(of, Case), of.world)

    def verdict(self) -> Verdict:
        """Collect, infer and check."""
        try:
            self._judge()
        except Unfinished as error:
            self._verdict.unfinished = str(error)
        return self._verdict

    def _judge(self) -> None:
        said = self._stage("models", self._models)
        variables = {name for line in re.findall(r"MODELS (.*)", said) for name in line.split()}
        self._verdict.models = sorted(variables & assigned(self._source))
        runs = {"one": {"seed": 1}, "two": {"seed": 2}, "twin": {}}
        if self._verdict.faulty:
            runs = {name: {"healthy": True, **given} for name, given in runs.items()}
            runs["bug"] = {"healthy": False}
        self._collect_all(runs)
        self._stage("infer", self._infer)
        rules = self._folder / "invariants.json"
        self._verdict.rules = rules.read_text().count("\n")
        broken = {name: self._checked(name) for name in runs if name in ("twin", "bug")}
        self._verdict.twin = relations_of(broken["twin"])
        own = broken.get("bug", {}).keys() - broken["twin"].keys()
        self._verdict.bug = relations_of({each: broken["bug"][each] for each in own})

    def _collect_all(self, runs: dict[str, dict[str, int | bool]]) -> None:
        """Collect all runs in the first style in which none fails."""
        for style in STYLES if self._verdict.models else STYLES[2:]:
            try:
                for name, given in runs.items():
                    collect = functools.partial(self._collect, name, given, style)
                    self._stage(f"collect {name} {style}", collect)
            except Unfinished:
                if style == STYLES[-1]:
                    raise
            else:
                self._verdict.style = style
                return

    def _models(self) -> Child:
        text = script(self._source, {"healthy": True} if self._verdict.faulty else {})
        bare = self._folder / "bare.py"
        bare.write_text(_FOLLOWED + text + _SAID)
        alone: Command = [self._tools / "python", bare]
        return self._ran(alone if self._of.world == 1 else self._on_ranks(bare))

    def _on_ranks(self, program: Path) -> Command:
        torchrun: Command = [self._tools / "torchrun", "--standalone", "--nproc-per-node"]
        return [*torchrun, str(self._of.world), program]

    def _collect(self, name: str, given: dict[str, int | bool], style: str) -> Child:
        folder = fresh(self._folder / name)
        program = fresh(self._folder / f"{name}_source") / "program.py"
        program.write_text(script(self._source, given))
        command: Command = [self._tools / "traincheck-collect", "-p", program]
        command += ["--output-dir", folder]
        if style != "none":
            command += ["--models-to-track", *self._verdict.models, "--model-tracker-style", style]
        if self._of.world > 1:
            start = program.parent / "start.sh"
            start.write_text(" ".join(map(str, self._on_ranks(Path(program.name)))) + "\n")
            command += ["-s", start]
        ran = self._ran(command)
        output = folder / "program_output.txt"
        ended = output.exists() and output.read_text().endswith("exited with code 0")
        if not ended or not traces_of(folder):
            raise Unfinished(_why(ran))
        return ran

    def _infer(self) -> Child:
        target = self._folder / "invariants.json"
        target.unlink(missing_ok=True)
        command: Command = [self._tools / "traincheck-infer", "-o", target]
        ran = self._ran([*command, "-f", self._folder / "one", self._folder / "two"])
        if ran.killed or not target.exists():
            raise Unfinished(_why(ran))
        return ran

    def _checked(self, name: str) -> dict[str, str]:
        """The relations of the invariants that a run violates, by invariant."""
        found = self._folder / f"{name}_results"

        def check() -> Child:
            command: Command = [self._tools / "traincheck-check", "-f", self._folder / name]
            command += ["-i", self._folder / "invariants.json", "--no-html-report"]
            ran = self._ran([*command, "-o", fresh(found)])
            if not (found / name / "failed.log").exists():
                raise Unfinished(_why(ran))
            return ran

        self._stage(f"check {name}", check)
        return violated((found / name / "failed.log").read_text())

    def _ran(self, command: Command) -> Child:
        return child(command, self._folder, 0, self._limit)

    def _stage(self, stage: str, run: Callable[[], Child]) -> str:
        """The output of a stage, which is run unless its figures are kept."""
        kept = self._folder / f"{stage}.json"
        if not kept.exists():
            try:
                kept.write_text(json.dumps(asdict(run())))
            except Unfinished as error:
                kept.write_text(json.dumps({"seconds": 0.0, "error": f"{stage}: {error}"}))
        figures = json.loads(kept.read_text())
        if "error" in figures:
            raise Unfinished(figures["error"])
        self._verdict.seconds[stage] = figures["seconds"]
        return str(figures["said"])


def _why(ran: Child) -> str:
    if ran.killed:
        return f"not finished after {ran.seconds:.0f} CPU seconds"
    lines = [line for line in ran.said.splitlines() if "Error" in line]
    return f"failed: {(lines or ran.said.splitlines() or [''])[-1][:200]}"


def script(source: str, given: dict[str, int | bool]) -> str:
    """The program as a script that trains.

    TrainCheck writes statements before the program's, so there can be no `from __future__`.
    """
    program = re.sub(r"^from __future__ .*\n", "", source, flags=re.MULTILINE)
    arguments = ", ".join(f"{name}={value}" for name, value in given.items())
    return f"{program}\n\ntorch.set_num_threads(1)\ntrain({arguments})\n"


def assigned(source: str) -> set[str]:
    """The variables of which TrainCheck sees an assignment: no annotated ones, no arguments."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            found |= {name.id for name in names if isinstance(name, ast.Name)}
    return found


def violated(log: str) -> dict[str, str]:
    """The relation of each invariant in a log of TrainCheck's check, by the invariant."""
    found: dict[str, str] = {}
    decoder, at = json.JSONDecoder(), 0
    while (at := log.find("{", at)) >= 0:
        result, at = decoder.raw_decode(log, at)
        invariant = result["invariant"]
        found[json.dumps(invariant, sort_keys=True)] = invariant["relation"]
    return found


def relations_of(broken: dict[str, str]) -> dict[str, int]:
    """How many invariants of each relation."""
    return dict(sorted(Counter(broken.values()).items()))


def alarms(counts: dict[str, int], view: str) -> int:
    """The violated invariants of a view: "all", or "filtered" without those on orders of calls."""
    return sum(many for name, many in counts.items() if view == "all" or name not in ORDERS)
