"""Applies every RNG rule to the ledgers of a trace. Called by `assert_rng` and the replay judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.mesh.parting import classes_of, parting_text
from pytest_trainsafe.core.usage import listing, name_ranks
from pytest_trainsafe.judges.contract import FindingsJudgement
from pytest_trainsafe.judges.replay.rng.draws import Draw, Draws
from pytest_trainsafe.judges.replay.rng.evaluation import evaluation_dropout, evaluation_shift
from pytest_trainsafe.judges.replay.rng.expected import expected, unused
from pytest_trainsafe.judges.replay.rng.initialisation import initialisation
from pytest_trainsafe.judges.replay.rng.panels import draw_panels
from pytest_trainsafe.judges.replay.rng.parallel import cut_axes, data_parallel
from pytest_trainsafe.judges.replay.rng.recomputation import recomputation
from pytest_trainsafe.judges.replay.rng.regions import Regions
from pytest_trainsafe.judges.replay.rng.workers import shared_generator, workers
from pytest_trainsafe.report.sections import collecting
from pytest_trainsafe.sweep.expectation import Expectation
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.rng.events import SWITCHED_OFF, LedgerGap, UnseenDraws
from pytest_trainsafe.trace.rng.ledger import ledger


@dataclass(frozen=True, slots=True)
class RngJudgement(FindingsJudgement):
    """The judgement of the rules on random numbers.

    `axis` says along which axis the ranks break the rule of the first Finding.
    """

    axis: str = field(default="", kw_only=True)
    text: ClassVar[str] = "pytest_trainsafe.judges.replay.rng.text"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What a page says beside the first Finding."""
        return [("axis", self.axis)] if self.axis else []


def judge_rng(
    candidate: Trace,
    reference: Trace | None = None,
    rules: Sequence[Expectation] = (),
    *,
    compared: bool = False,
) -> RngJudgement:
    """Judge the random numbers that a candidate draws.

    The reference, a Run in the same dtype, is not judged: its draws show which tensors of the
    candidate are shards, and which draws the program also repeats on a single device. `rules`
    are what the test expects with `expect_rng`, and `compared` says that it also compares the
    tensors of both Runs.
    """
    draws = Draws.of(candidate)
    trusted = None if reference is None else Draws.of(reference)
    regions = Regions(draws, trusted, compared=compared)

    def excused(check: str, draw: Draw) -> bool:
        axis = check.removeprefix("rng:").partition("_")[0]
        return any(
            rule.concerns(draw.place)
            and (check in rule.ignore or axis in rule.same + rule.different)
            for rule in rules
        )

    def ignored(check: str, place: str) -> bool:
        return any(rule.concerns(place) and check in rule.ignore for rule in rules)

    unknown: dict[str, set[str]] = {"tp": set(), "cp": set()}
    repeated: set[str] = set()
    seeds: set[str] = set()
    found = [
        *data_parallel(draws, regions, excused, repeated),
        *(f for axis in unknown for f in cut_axes(draws, regions, axis, excused, unknown[axis])),
        *recomputation(draws, excused),
        *evaluation_dropout(draws, excused),
        *evaluation_shift(draws, excused, seeds),
        *initialisation(draws, reference, excused),
        *shared_generator(draws, excused),
        *workers(candidate, ignored),
        *expected(draws, rules),
        *(() if ignored("rng:unseen", "") else _unseen(draws)),
    ]
    notes = [*_notes(draws, unknown, repeated, seeds)]
    notes += unused(draws, rules)
    found.sort(key=lambda f: f.order)
    return RngJudgement(
        "replay",
        tuple(found),
        tuple(notes),
        what=f"{candidate.manifest.program} at {candidate.point}",
        drawn=draw_panels(draws, found) if collecting() else (),
        axis=_axis_text(draws, found[0]) if found else "",
    )


def _unseen(draws: Draws) -> list[Finding]:
    """A finding for the first rank whose ledger does not show the draws of its dropout, if any."""
    for rank in draws.trace.ranks:
        if SWITCHED_OFF in ledger(rank):
            message = (
                f"rank {rank.rank} has no RNG ledger, so its draws are unknown; record it with "
                "--trainsafe-rng on"
            )
            return [_doubt(message)]
        rates = rank.note("dropout")
        if not rates or draws.masks(rank.rank) or rank.note("compiled"):
            continue
        reasons = [
            f"{event.what}: {event.why}" for event in ledger(rank) if isinstance(event, LedgerGap)
        ]
        reasons += [
            f"{event.generator} drew {event.count} numbers that were not recorded, in step "
            f"{event.step}"
            for event in ledger(rank)
            if isinstance(event, UnseenDraws) and event.count
        ]
        if reasons:
            message = (
                f"dropout with p={rates[0]} is active, but the RNG ledger of rank {rank.rank} "
                f"shows none of its draws, so they are not compared ({reasons[0]})"
            )
            return [_doubt(message)]
    return []


def _doubt(message: str) -> Finding:
    return Finding(verdict="inconclusive", judge="replay", check="rng:unseen", message=message)


def _notes(
    draws: Draws, unknown: dict[str, set[str]], repeated: set[str], seeds: set[str]
) -> list[str]:
    notes = []
    for axis, modules in unknown.items():
        if modules:
            notes.append(
                f"dropout over {axis} in {_named(modules)}: it is not known whether its input is "
                f"sharded over {axis}"
            )
    if repeated:
        notes.append(
            f"dropout over dp in {_named(repeated)}: the program draws the same numbers for "
            "different micro-batches on a single device too"
        )
    if seeds:
        lines = listing(sorted(map(relative, seeds)))
        notes.append(
            f"a seed that a data loader draws from the training's stream in evaluation ({lines}): "
            "give the loader its own generator, so that it leaves the training's stream alone"
        )
    for rank in draws.trace.ranks:
        for event in ledger(rank):
            if isinstance(event, LedgerGap):
                notes.append(f"rank {rank.rank}: {event.what} ({event.why})")
            elif isinstance(event, UnseenDraws) and event.count:
                notes.append(
                    f"rank {rank.rank}: {event.generator} drew {event.count} numbers that were not "
                    f"recorded, before or in step {event.step}"
                )
    compiled = {
        name for rank in draws.trace.ranks if rank.note("dropout") for name in rank.note("compiled")
    }
    if compiled:
        notes.append(f"dropout inside the compiled region of {_named(compiled)}")
    return list(dict.fromkeys(notes))


def _named(modules: set[str]) -> str:
    names = sorted(name or "the root module" for name in modules)
    return listing(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _axis_text(draws: Draws, lead: Finding) -> str:
    """The axis of a Finding, and how the ranks' draws part at the place that it is about.

    A rule without an axis is about the draws of each rank alone.
    """
    axis = "" if lead.pattern is None else lead.pattern.axis
    if not axis:
        return "none: this rule is about the draws of each rank alone"
    every = (draw for rank in draws.by_rank for draw in rank)
    at = next((draw for draw in every if draw.is_about(lead)), None)
    if at is None:
        return axis
    states: dict[int, str] = {}  # micro-batches have other numbers on other ranks of dp
    for rank, own in enumerate(draws.by_rank):
        for draw in own:
            if (draw.event.step, draw.place) == (at.event.step, at.place):
                states.setdefault(rank, draw.event.before)
    classes = classes_of(states)
    if len(classes) == 1 and len(classes[0]) > 1:
        return f"{axis}: {name_ranks(classes[0])} draw equal numbers there"
    apart = parting_text(draws.trace.point, classes, "draw equal numbers")
    return f"{axis}: {apart}" if apart else axis
