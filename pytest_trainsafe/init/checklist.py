"""What a training on one device shows of a program, and what it lacks for a test."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.rungs.table import WIDEST, rung_named
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.core.usage import listing
from pytest_trainsafe.init.axes import Axes
from pytest_trainsafe.init.program import Found, is_own
from pytest_trainsafe.init.trial import Trial
from pytest_trainsafe.sweep.point_summary import plural
from pytest_trainsafe.trace.facts import Annotations, Cast, Site
from pytest_trainsafe.trace.reader import RankTrace
from pytest_trainsafe.trace.rng.events import DrawEvent, WorkerDraw
from pytest_trainsafe.trace.schema import TensorEvent

COMMON = "programs.md#what-the-reference-and-the-candidate-must-have-in-common"

AVERAGED = "programs.md#a-loss-averaged-over-one-rank"

#: The most lines or files that a row names.
_FEW = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the checklist.

    A row that "lacks" something says in `todo` what to do, and in `page` which page of the
    documentation explains it, as for `core.pages.page`; a "note" may do so.
    """

    mark: Literal["ok", "note", "lacks"]
    label: str
    text: str
    todo: str = ""
    page: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the rows are made from: the program, its training, and the axes that it asks for."""

    found: Found
    trial: Trial
    axes: Axes

    @property
    def rank(self) -> RankTrace:
        """What the only rank recorded."""
        return self.trial.trace.ranks[0]

    def tensors(self, kind: str) -> list[tuple[TensorId, TensorEvent]]:
        """The recorded tensors of one kind."""
        return [(id, event) for id, event in self.rank.tensors.items() if id.kind == kind]

    def initial(self) -> list[tuple[TensorId, TensorEvent]]:
        """The parameters before the first step."""
        return [each for each in self.tensors("param") if each[0].step == INITIAL]

    def sites(self, what: str) -> list[str]:
        """The lines of the program that do `what`, without duplicates."""
        sites = (site for site in self.rank.events_of(Site) if site.what == what)
        return list(dict.fromkeys(relative(site.user or site.at) for site in sites))


def checklist(seen: Seen) -> list[Check]:
    """The rows, in the order in which a program meets their subjects."""
    return [check for row in ROWS if (check := row(seen)) is not None]


def _context(seen: Seen) -> Check:
    script = seen.found.declaration.program.script is not None
    way = "gets its context from pytest_trainsafe.context()" if script else "takes ctx"
    lines = seen.sites("watch")
    return Check("ok", "context", f"{way}; calls ctx.watch{_at(lines)}")


def _model(seen: Seen) -> Check:
    parameters = seen.initial()
    count = sum(math.prod(event.shape) for _, event in parameters)
    states = len({id.path for id, _ in seen.tensors("optimizer_state")})
    text = (
        f"{plural(len(parameters), 'parameter')} ({count} numbers) in "
        f"{plural(len(seen.rank.modules), 'module')}, {plural(states, 'optimizer state')}"
    )
    if not parameters:
        return Check(
            "lacks", "model", text, "give ctx.watch the model whose parameters are trained", COMMON
        )
    if not any(step.optimizer_stepped for step in seen.rank.steps):
        todo = "call ctx.watch(model, optimizer), and optimizer.step() inside `with ctx.step():`"
        page = "programs.md#data-parallel-wrappers-and-optimizers"
        return Check("lacks", "model", f"{text}; no watched optimizer takes a step", todo, page)
    return Check("ok", "model", text)


def _steps(seen: Seen) -> Check:
    steps = seen.rank.steps
    counts = sorted({step.microbatches for step in steps})
    whole = "step" in seen.rank.note("level")
    each = "whole steps" if whole else f"{' or '.join(map(str, counts))} micro-batches in each"
    text = f"{plural(len(steps), 'step')}, {each}"
    if not whole and counts[0] == 0:
        return Check(
            "lacks",
            "steps",
            text,
            "run forward and backward in `with ctx.microbatch(index):`, for each index in "
            'ctx.microbatches(total); or ctx.watch(..., level="step") to compare whole steps only',
            COMMON,
        )
    if len(steps) == 1:
        todo = "take two steps: only the second shows what the first leaves behind"
        return Check("lacks", "steps", text, todo, "programs.md#how-many-steps")
    if not whole and counts == [1]:
        todo = "give each step two micro-batches or more, so that dp ranks can divide them"
        return Check("note", "steps", text, todo, COMMON)
    return Check("ok", "steps", text)


def _losses(seen: Seen) -> Check:
    losses = seen.tensors("loss")
    if not losses:
        todo = "call ctx.loss(loss) in each micro-batch: what is not reported is not compared"
        return Check("lacks", "losses", "none are reported", todo, COMMON)
    return Check("ok", "losses", f"{len(losses)}{_at(seen.sites('loss'))}")


def _gradients(seen: Seen) -> Check:
    parameters = {id.path for id, _ in seen.initial()}
    main = {id.path for id, _ in seen.tensors("main_grad")} & parameters
    text = f"of {len(main)} of {plural(len(parameters), 'parameter')}"
    without = sorted(parameters - main)
    if not main:
        todo = "call loss.backward() inside `with ctx.step():`, before optimizer.step()"
        return Check("lacks", "gradients", text, todo, COMMON)
    return Check("ok", "gradients", f"{text}; not of {_few(without)}" if without else text)


def _norm(seen: Seen) -> Check | None:
    """A row on the norm by which gradients are clipped, if the program computes it unseen."""
    unseen = [text for text in seen.rank.note("not_compared") if text.startswith("the norm by ")]
    if not unseen:
        return None
    todo = (
        "call ctx.before_clip(norm, limit) before gradients are clipped: then the norm and the "
        "gradients before clipping are compared, which show whether the reduction averages"
    )
    return Check("lacks", "norm", unseen[0].partition(";")[0], todo, AVERAGED)


def _dtype(seen: Seen) -> Check:
    trial = seen.trial
    page = "programs.md#the-same-data-in-every-dtype"
    todo = "use model.to(ctx.device, ctx.dtype), and ctx.dtype wherever the program names a dtype"
    if trial.not_float64:
        text = f"the program cannot run in float64: {trial.not_float64}"
        return Check("lacks", "dtype", text, todo, page)
    others = sorted({e.dtype for _, e in seen.initial()} & {*rung_named(WIDEST).narrower})
    if others:
        text = f"parameters are {' and '.join(others)}, although ctx.dtype is {trial.dtype}"
        return Check("lacks", "dtype", text, todo, page)
    casts = [cast for cast in seen.rank.events_of(Cast) if rung_named(cast.dtype).host]
    if casts:
        at = relative(casts[0].at)
        text = f"follows ctx.dtype, but {at} casts to {casts[0].dtype}, whose rounding then counts"
        return Check("note", "dtype", text, "cast to ctx.dtype, if nothing requires this", page)
    if "dtype" not in seen.rank.note("used"):
        text = "follows torch's default dtype, float64 here; ctx.dtype is never read"
        return Check("note", "dtype", text, todo, page)
    return Check("ok", "dtype", "follows ctx.dtype")


def _data(seen: Seen) -> Check:
    rank = seen.rank
    inputs = [(id, event) for id, event in seen.tensors("input") if id.step == 0]
    first = {id.microbatch for id, _ in inputs[:1]}
    shapes = [
        f"{event.dtype} {list(event.shape)}" for id, event in inputs if id.microbatch in first
    ]
    draws = [e for e in rank.events_of(DrawEvent) if e.phase == "data" and e.line]
    lines = [relative(draw.line) for draw in draws]
    lines += [f"{relative(e.at)} (data loader)" for e in rank.events_of(WorkerDraw) if e.at]
    files = [os.path.relpath(path) for path in _files(seen)]
    sources = [
        *([f"drawn at {_few(lines)}"] if lines else []),
        *([f"read from {_few(files)}"] if files else []),
    ]
    text = f"{_few(shapes) or 'no inputs seen'}; {' and '.join(sources) or 'made by the program'}"
    hashes = [event.hashes for event in rank.inputs]
    if len(hashes) > 1 and len(set(hashes)) == 1:
        todo = "make the batch from the step and the micro-batch's number: batch(step, index)"
        return Check("lacks", "data", f"{text}; all micro-batches have the same", todo, COMMON)
    return Check("ok", "data", text)


def _deterministic(seen: Seen) -> Check:
    flaw = seen.trial.flaw
    if flaw is None:
        text = f"not tried, because one training takes {seen.trial.run.seconds['train']:.0f} s"
        todo = "call assert_deterministic(candidate_trace) in a test"
        return Check("note", "deterministic", text, todo, "determinism.md")
    if flaw:
        todo = "seed each generator from ctx.seed and the micro-batch's number"
        text = f"no: trained again, the program {flaw}"
        return Check("lacks", "deterministic", text, todo, "programs.md#random-numbers")
    return Check("ok", "deterministic", "trained again, it has the same data and results")


def _initial(seen: Seen) -> Check:
    if "initialize" in seen.rank.note("used"):
        return Check("ok", "first values", "by ctx.initialize, equal at every Point")
    mesh = seen.trial.trace.point.mesh
    parts = [axis for axis in seen.axes.asked if mesh.role(axis) in ("tp", "pp")]
    todo = "call ctx.initialize(model) before the optimizer is made, or load a checkpoint"
    if seen.trial.seeded is False:
        text = "do not depend on ctx.seed: from a checkpoint, or from a seed of the program's own"
        apart = f"; if drawn, ranks of {listing(parts)} draw others for their parts"
        if parts:
            return Check("note", "first values", f"{text}{apart}", todo, COMMON)
        return Check("ok", "first values", text)
    how = "depend on the seed" if seen.trial.seeded else "without ctx.initialize"
    if parts:
        text = f"{how}: ranks of {listing(parts)} that hold a part would draw others"
        return Check("lacks", "first values", text, todo, COMMON)
    return Check("ok", "first values", f"{how}, and every rank holds the whole model")


def _axes(seen: Seen) -> Check:
    axes = seen.axes
    if axes.unseen:
        todo = (
            "use ctx.microbatches(total) to divide micro-batches over dp, and ctx.group(axis) for "
            "the process groups of your layers"
        )
        text = "the program asks for no axis, so it would train the same on every rank"
        return Check("lacks", "axes", text, todo, "programs.md#reading-the-point")
    parts = [f"{axis} ({', '.join(how)})" for axis, how in axes.asked.items()]
    more = f"; also reads or names {', '.join(axes.others)}" if axes.others else ""
    return Check("ok", "axes", f"{', '.join(parts)}{more}")


ROWS: tuple[Callable[[Seen], Check | None], ...] = (
    _context,
    _model,
    _steps,
    _losses,
    _gradients,
    _norm,
    _dtype,
    _data,
    _deterministic,
    _initial,
    _axes,
)


def _files(seen: Seen) -> Iterator[str]:
    """The files that the program opened for reading, without code and annotations."""
    known = {fact.file for fact in seen.rank.events_of(Annotations)}
    for path in seen.trial.run.notes.inputs():
        file = Path(path)
        code = file.suffix in (".py", ".pyc")
        system = path.startswith(("/proc/", "/sys/")) or not is_own(file)
        if not (code or system or path in known) and file.is_file():
            yield path


def _at(lines: list[str]) -> str:
    return f" at {_few(lines)}" if lines else ""


def _few(words: list[str]) -> str:
    """The first few words without duplicates, and how many more there are."""
    every = list(dict.fromkeys(words))
    more = [f"{len(every) - _FEW} more"] if len(every) > _FEW else []
    return " and ".join(filter(None, [", ".join(every[:_FEW]), *more]))
