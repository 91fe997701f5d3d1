"""Lists what a comparison did not cover, whatever its verdict.  Called by the ladder.

These messages fail no test.  If most tensors of a kind were not compared, the guards make the test
inconclusive (`judges/compare/guards/vacuity.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from pytest_trainsafe.align.logical import is_cut_over_stages, logical_tensor
from pytest_trainsafe.align.sketched import is_whole
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import first_few, name_list
from pytest_trainsafe.judges.compare.compare import compiled_modules, is_compiled
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.explain.held import unheld_in_both
from pytest_trainsafe.judges.compare.guards.clip_limit import limits_apart
from pytest_trainsafe.judges.compare.guards.later_steps import later_steps
from pytest_trainsafe.judges.compare.guards.vacuity import COVERED
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.local_key_paths import is_local
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import NoteKey

#: How many notes are listed for each kind of note.
MAX_LISTED = 4


def not_compared(rung: RungTraces, comparison: Comparison) -> list[str]:
    """Sentences about what was not compared, such as tensors that only one side recorded."""
    notes = [*_whole_steps(rung.candidate), *_compiled(rung, comparison)]
    notes += _noted([rung.candidate, rung.reference], "not_compared", "not compared: ")
    notes += _noted([rung.candidate], "unused_annotation", "")
    patterns = (set(rank.note("unmatched_pattern")) for rank in rung.candidate.ranks)
    notes += [
        f"not compared: the activations of {pattern!r}, because this pattern of "
        "--trainsafe-record-modules matches no module"
        for pattern in sorted(set.intersection(*patterns))
    ]
    notes += _measured_by_noise(rung)
    if comparison.flipped:
        notes.append(
            f"{comparison.flipped} of {comparison.choices} choices in {rung.dtype} differ from the "
            "reference's, all within rounding; the candidate used the reference's choices instead"
        )
    notes += _clipped(rung)
    notes += _limits(rung)
    notes += _untrained(rung)
    notes += later_steps(rung.candidate, rung.reference, comparison.failed)
    notes += _in_step(comparison)
    notes += _terms(comparison)
    notes += _buffers(comparison)
    notes += _inputs(comparison)
    mine, theirs = set(rung.candidate.ids()), set(rung.reference.ids())
    last = max((f.where.step for f in comparison.findings if f.where is not None), default=None)
    if not comparison.failed:
        last = None
    failed = {finding.where for finding in comparison.findings}
    local = {name for rank in rung.candidate.ranks for name in rank.note("local")}
    compiled = compiled_modules(rung.candidate)
    lacking = {
        id
        for id in theirs - mine - failed
        if not is_local(id, local) and not is_compiled(id, compiled)
    }
    notes += _one_sided(lacking, "reference", "candidate", last)
    if count := comparison.local.total() - comparison.local["param_grad"]:
        notes.append(
            f"not compared: {count} of the reference's tensors, which annotations declare local "
            "(without a counterpart) at this Point"
        )
    if count := comparison.local["param_grad"]:
        notes.append(
            f"not compared: {count} micro-batch gradients without a counterpart at this Point, as "
            "an expert's contain tokens of other ranks. Those of whole steps are compared"
        )
    if dealt := comparison.dealt:
        names = name_list([*dealt], "parameter")
        notes.append(
            f"not compared: {dealt.total()} micro-batch gradients of {names}: dp ranks that train "
            "other micro-batches hold other rows of these, and each row gets the gradients of all. "
            "The gradients of whole steps are compared"
        )
    extra = {id for id in mine - theirs if not is_cut_over_stages(rung.candidate, id)}
    notes += _one_sided(extra, "candidate", "reference", last)
    return notes


#: What to change if the reference does another computation in float64.
_SAME = {
    "draws": (
        ". Draw in a fixed dtype and cast: torch.randn(..., dtype=torch.float32).to(ctx.dtype)"
    ),
    "input": ". Make the data in a fixed dtype, and cast it to ctx.dtype",
}


def _measured_by_noise(rung: RungTraces) -> list[str]:
    """A sentence if the distance from the float64 reference was left out.

    Parameters that differ at the start need no sentence: those of a program with master copies do.
    """
    flaw = rung.shadow_flaw()
    if flaw is None or flaw.kind == "start":
        return []
    text = (
        f"the tolerances in {rung.dtype} are measured by noise alone, not by the distance from a "
        f"float64 run: in float64, the reference {flaw.what}{_SAME.get(flaw.kind, '')}"
    )
    return [text]


def _clipped(rung: RungTraces) -> list[str]:
    """A sentence if candidate and reference clip gradients with different functions."""
    ours, theirs = (
        {function for rank in trace.ranks for function in rank.note("clipped")}
        for trace in (rung.candidate, rung.reference)
    )
    if _ways_of_clipping(ours) == _ways_of_clipping(theirs):
        return []
    by = [", ".join(sorted(each)) or "no function that it announces" for each in (ours, theirs)]
    text = (
        f"the candidate clips its gradients with {by[0]}, the reference with {by[1]}: gradients "
        "before clipping, and the norm in a clip function, are compared only if both record them; "
        "a program announces its own clipping by ctx.before_clip(norm, limit)"
    )
    return [text]


def _limits(rung: RungTraces) -> list[str]:
    """A sentence if candidate and reference clip gradients by other limits of their norm."""
    apart = limits_apart(rung.candidate, rung.reference)
    if apart is None:
        return []
    return [
        f"the candidate clips its gradients at a norm of {apart[0]}, the reference at {apart[1]}"
    ]


def _untrained(rung: RungTraces) -> list[str]:
    """A sentence on parameters that get gradients and never change: no optimizer holds them.

    Both Runs do the same, so no comparison shows that they were forgotten.
    """
    reference = rung.reference
    graded = {id.path for id in reference.ids() if id.kind == "param_grad"}
    forgotten = unheld_in_both(rung.candidate, reference) & graded
    first: dict[str, TensorId] = {}
    for id in reference.ids():
        if id.kind == "param" and id.path in forgotten:
            first.setdefault(id.path, id)
    names = [name for name, id in first.items() if not _moves(reference, id)]
    if not names:
        return []
    they, them = ("it", "it") if len(names) == 1 else ("they", "them")
    text = (
        f"no watched optimizer holds {name_list(names, 'parameter')}, and no step changes {them}, "
        f"although the backward computes gradients of {them}: if {they} should be trained, give "
        f"{them} to an optimizer; else call requires_grad_(False)"
    )
    return [text]


def _moves(trace: Trace, first: TensorId) -> bool:
    """Whether a parameter has other values after some step than at `first`; True if unknown."""
    later = [
        id
        for id in trace.ids()
        if (id.kind, id.path) == ("param", first.path) and id.step > first.step
    ]
    start = logical_tensor(trace, first).whole if is_whole(trace, first) else None
    if start is None or not later:
        return True
    ends = (logical_tensor(trace, id).whole if is_whole(trace, id) else None for id in later)
    return any(end is None or not torch.equal(start, end) for end in ends)


def _ways_of_clipping(functions: Iterable[str]) -> set[str]:
    """The clip functions; torch's two functions that clip by the norm count as the same one."""
    by_norm = ("clip_grad_norm_", "clip_grads_with_norm_")
    return {by_norm[0] if function in by_norm else function for function in functions}


def _in_step(comparison: Comparison) -> list[str]:
    """Sentences on gradients that the optimizer reduces inside its step."""
    ways: dict[str, list[str]] = {}
    for path, how in comparison.in_step.items():
        ways.setdefault(how, []).append(path)
    return [
        f"not compared: the gradients of {first_few(paths)} before the optimizer's step, which "
        f"reduces them over ranks; {how} of them was compared instead"
        for how, paths in ways.items()
    ]


def _terms(comparison: Comparison) -> list[str]:
    """Sentences on gradients of activations of which each rank holds a term."""
    held: dict[str, dict[str, None]] = {}
    for id, axes in comparison.terms.items():
        held.setdefault(" and ".join(axes), {})[id.path] = None
    return [
        f"each rank of {axes} holds a term of the gradient of {first_few([*paths])}; the "
        f"sum over {axes} equals the reference's, and so does all that is computed from it"
        for axes, paths in held.items()
    ]


def _buffers(comparison: Comparison) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for path, why in comparison.apart.items():
        reasons.setdefault(why, []).append(path)
    return [
        f"not compared: buffer{'s' * (len(paths) > 1)} {first_few(paths)}, at least in part: {why}"
        for why, paths in reasons.items()
    ]


def _inputs(comparison: Comparison) -> list[str]:
    blamed = {finding.where for finding in comparison.findings}
    left = [*comparison.unclear, *(id for _, id, _ in comparison.given if id not in blamed)]
    if not left:
        return []
    paths = list(dict.fromkeys(id.path for id in left))
    text = (
        f"not compared: the model's inputs {first_few(paths)}, since no layout maps them to the "
        "reference's inputs"
    )
    return [text]


def _whole_steps(candidate: Trace) -> list[str]:
    """A sentence if only whole steps were compared, because no micro-batch was recorded."""
    if any(rank.note("level") for rank in candidate.ranks):
        why = "ctx.watch has level='step'"
    elif any(step.microbatches for rank in candidate.ranks for step in rank.steps):
        return []
    else:
        why = "the program entered no micro-batch"
    return [
        (
            "only whole steps were compared, no activations and no gradients of micro-batches, "
            f"because {why}"
        )
    ]


def _compiled(rung: RungTraces, comparison: Comparison) -> list[str]:
    """A sentence on the modules whose activations are missing because of torch.compile."""
    compiled, held = compiled_modules(rung.candidate), set(rung.candidate.ids())
    lacking = (id for id in rung.reference.ids() if id not in held and is_compiled(id, compiled))
    names = list(dict.fromkeys(id.module for id in lacking))
    if not names:
        return []
    named = first_few([name or "the root module" for name in names])
    text = (
        f"not compared: the activations of {len(names)} module{'s' * (len(names) > 1)} inside "
        f"torch.compile ({named})"
    )
    if not comparison.compared["activation"]:
        text += ". Give ctx.watch the compiled model, so that its output is compared"
    return [text]


def _noted(traces: Sequence[Trace], key: NoteKey, head: str) -> list[str]:
    found = list(dict.fromkeys(v for t in traces for rank in t.ranks for v in rank.note(key)))
    notes = [head + text for text in found[:MAX_LISTED]]
    if len(found) > MAX_LISTED:
        notes.append(f"{head}and {len(found) - MAX_LISTED} more like these")
    return notes


def _one_sided(ids: Iterable[TensorId], owner: str, other: str, last: int | None) -> list[str]:
    notes = []
    for kind in COVERED:
        found = sorted(id for id in ids if id.kind == kind and (last is None or id.step <= last))
        paths = list(dict.fromkeys(_name(id) for id in found))
        if found:
            notes.append(
                f"not compared: {len(found)} of the {owner}'s tensors of kind {kind} have no "
                f"counterpart in the {other} ({first_few(paths)})"
            )
    return notes


def _name(id: TensorId) -> str:
    return id.path + (f" call {id.call}" if id.call else "")
