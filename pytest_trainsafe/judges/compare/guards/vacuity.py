"""Detects checks that could not have failed, and makes their test inconclusive.

So if a test passes, something was compared that a bug would have changed.  Each guard yields its
doubts as pairs: the name of the check, by which a user can accept the doubt, and a message.  Called
by the ladder.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator

import xxhash

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.sketched import is_whole, logical_sketch
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.layout import axes_of
from pytest_trainsafe.core.point import NO_RECOMPUTE, AxisValue
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.guards.in_effect import why_without_effect
from pytest_trainsafe.judges.compare.guards.unstable import unstable_tensors
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.check import DTYPES
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import TensorEvent

#: A tensor whose allowance is as large as its norm cannot fail.  If more than this share of a kind
#: cannot, the kind's check is vacuous.
MAX_INSENSITIVE = 0.5

#: A kind counts as unchecked if more than this share of its tensors has no counterpart.
MAX_UNCOVERED = 0.5

#: Errors such as a wrong scale or order do not change zeros.  If more than this share of the
#: activations is zero, the forward pass counts as unchecked.
MAX_ZERO = 0.75

#: The kinds that a candidate must record wherever the reference does.  Others are optional:
#: optimizers differ in the names and the form of their state, and not every program has master
#: copies or a gradient norm.
COVERED = ("activation", "activation_grad", "param_grad", "main_grad", "update", "loss")

#: The checks of a run's setup.  If the comparison fails, these may show the cause.
SETUP = frozenset({"dp-inputs", "tp-inputs", "in-effect", "skipped-step"})

#: Where the message of `dp-inputs` begins to say what a test that passes does not show.
UNSEEN = ": a missing "

#: Axes that may take effect without sharding a tensor, and their values that have no effect.
_TRIVIAL: dict[str, tuple[AxisValue, ...]] = {
    "sp": (False,),
    "vpp": (1,),
    "ep": (1,),
    "zero": (0,),
    "recompute": NO_RECOMPUTE,
    "compile": (False,),
}

#: The number of bytes of zeros that are hashed at a time.
_BLOCK = 2**20

Guard = Iterator[tuple[str, str]]


def guard(rung: RungTraces, comparison: Comparison) -> list[Finding]:
    """The inconclusive findings of all guards on a comparison."""
    checks = (
        _compared(comparison),
        _coverage(comparison),
        _gradients(rung),
        _moved(comparison),
        _inputs(rung.candidate),
        _in_effect(rung.candidate),
        _consequences(rung),
        _skipped(rung),
        _dropout(rung.candidate),
        _sensitive(comparison),
        unstable_tensors(comparison),
        _zeros(comparison),
        _weights(rung),
        _measured(rung),
        _decided(comparison),
    )
    return [_doubt(check, text, rung.dtype) for findings in checks for check, text in findings]


def _doubt(check: str, message: str, dtype: str) -> Finding:
    return Finding(
        verdict="inconclusive", judge="vacuity", check=check, message=message, dtype=dtype
    )


def _compared(comparison: Comparison) -> Guard:
    if not comparison.compared:
        yield "compared", "no tensor was compared: candidate and reference have none in common"
    elif not comparison.compared["main_grad"] and not comparison.compared["param_grad"]:
        text = "no gradient was compared, and a loss alone shows few bugs; record gradients "
        yield "gradients-compared", f"{text}(--trainsafe-record-kinds)"


def _coverage(comparison: Comparison) -> Guard:
    for kind in COVERED:
        missing, compared = comparison.uncovered[kind], comparison.compared[kind]
        if not compared:  # local annotations may cover most of a kind, but not all of it
            missing += comparison.local[kind]
            missing += comparison.dealt.total() if kind == "param_grad" else 0
        if missing > MAX_UNCOVERED * (missing + compared):
            text = (
                f"{missing} of the reference's {missing + compared} tensors of kind {kind} have no "
                "counterpart in the candidate, so they were not compared"
            )
            yield f"coverage:{kind}", text
    lost = comparison.undetermined
    updates = lost + comparison.compared["update"] + comparison.uncovered["update"]
    if lost > MAX_UNCOVERED * updates:
        text = (
            f"{lost} of {updates} updates were not compared: rounding decides the sign of every "
            "element of their gradients"
        )
        yield "coverage:update", text


def _gradients(rung: RungTraces) -> Guard:
    seen = False
    for id in rung.reference.ids():
        if id.kind != "main_grad":
            continue
        seen = True
        if _any(rung.reference, id):
            return
    if seen:
        yield "gradients", "every gradient of the reference is zero: nothing was trained"


def _weights(rung: RungTraces) -> Guard:
    """Yields a doubt if the reference's weights are zero, or only its biases and scales move.

    If all weights are zero, every layer returns its bias, and only biases have gradients.  Then an
    error in a layer's computation has no effect.
    """
    start = [id for id in rung.reference.ids() if id.kind == "param" and id.step == INITIAL]
    weights = [id for id in start if _is_matrix(rung.reference, id)]
    zero = [id for id in weights if _is_zero(rung.reference, id)]
    if len(zero) > MAX_ZERO * len(weights):
        text = (
            f"{len(zero)} of {len(weights)} weights of the reference start as zeros, such as "
            f"{zero[0].path}, so an error in a layer would not show. Initialize the parameters, as "
            "ctx.initialize does"
        )
        yield "zeros", text
        return
    trained = [id for id in rung.reference.ids() if id.kind == "main_grad"]
    given = [id for id in trained if _is_matrix(rung.reference, id)]
    if given and all(_is_zero(rung.reference, id) for id in given):
        others = [id for id in trained if not _is_zero(rung.reference, id)]
        if others:
            text = (
                f"only biases and scales moved, such as {others[0].path}: the gradient of every "
                "weight of the reference is zero"
            )
            yield "moved", text


def _is_matrix(trace: Trace, id: TensorId) -> bool:
    return len(trace.holders(id)[0][1].shape) > 1


def _is_zero(trace: Trace, id: TensorId) -> bool:
    """Whether every element is zero (and none is -0)."""
    return all(_is_zero_part(trace, rank, event) for rank, event in trace.holders(id))


def _is_zero_part(trace: Trace, rank: RankTrace, event: TensorEvent) -> bool:
    if event.sketch >= 0:
        return not trace.sketch(rank.rank, event).any()
    # The declared size is verified only for values that are stored in a file.
    return bool(event.key) and event.hash == _hash_of_zeros(_bytes_of(event))


def _bytes_of(event: TensorEvent) -> int:
    return math.prod(event.stored.shape) * DTYPES[event.stored.dtype].itemsize


@functools.lru_cache(maxsize=256)
def _hash_of_zeros(size: int) -> str:
    digest = xxhash.xxh3_128()
    for start in range(0, size, _BLOCK):
        digest.update(bytes(min(_BLOCK, size - start)))
    return digest.hexdigest()


def _any(trace: Trace, id: TensorId) -> bool:
    """Whether a tensor has a non-zero element."""
    if not is_whole(trace, id):
        sketch = logical_sketch(trace, id)
        return sketch is not None and bool(sketch.values.any())
    tensor = logical_tensor(trace, id).whole
    return tensor is not None and bool(tensor.any())


def _moved(comparison: Comparison) -> Guard:
    compared = comparison.compared
    if compared["update"]:
        if not comparison.moved and (compared["main_grad"] or compared["param_grad"]):
            yield "moved", "no parameter of the reference moved in any step"
    elif compared["main_grad"]:
        yield "moved", "no update of a parameter was compared, so the optimizer was not checked"
    elif compared["param_grad"]:
        text = (
            "neither updates nor gradients after their reduction were compared, so a missing "
            "reduction would not show: pass ctx.watch the optimizer, and record the kinds param "
            "and main_grad"
        )
        yield "moved", text


def _inputs(candidate: Trace) -> Guard:
    """Yields a doubt if dp ranks receive the same data, or tp ranks different data."""
    work = _work_of(candidate)
    for here, there in _neighbours(candidate, "dp", work):
        if work(here) == work(there):
            over = " and ".join(_apart(here, there))
            text = (
                f"ranks {here.rank} and {there.rank} of {over} saw the same data{UNSEEN}average "
                f"over {over} would not show"
            )
            yield "dp-inputs", text
            break
    for here, there in _neighbours(candidate, "tp", _data_of):
        if _data_of(here) != _data_of(there):
            over = " and ".join(_apart(here, there))
            text = (
                f"ranks {here.rank} and {there.rank} of {over} saw different data, but ranks of "
                f"{over} must see the same data"
            )
            yield "tp-inputs", text
            break


def _in_effect(candidate: Trace) -> Guard:
    """Yields a doubt for each axis that neither shards a tensor nor divides the work."""
    mesh = candidate.sizes.mesh
    named = {
        axis
        for rank in candidate.ranks
        for event in rank.tensors.values()
        if event.id.kind != "param_grad"  # a partial sum over cp in every program
        for placement in event.layout
        for axis in axes_of(placement)
    }
    if any(map(_work_of(candidate), candidate.ranks)):
        named.add("dp")  # `dp-inputs` covers dp if its ranks did the same work
    used = mesh.expand(named)
    shares = {"cp": _inputs_of, "pp": _modules_of}
    for axis, size in candidate.sizes.items():
        if size == 1 or axis in used:
            continue
        share = shares.get(mesh.role(axis))
        if share and any(share(a) != share(b) for a, b in _neighbours(candidate, axis, share)):
            continue
        text = (
            f"{axis}={size} had no effect: no tensor is split, summed or distributed over {axis}. "
            "Either the program ignores the axis, or annotations are missing"
        )
        of_data = mesh.role(axis) == "dp"
        if of_data and not any(s.microbatches for rank in candidate.ranks for s in rank.steps):
            text += (
                ". The program entered no micro-batch: enter ctx.microbatch, or give ctx.watch "
                "level='step'"
            )
        yield "in-effect", text
    read = {axis for rank in candidate.ranks for axis in rank.note("read_axis")}
    for axis, value in candidate.point:
        if axis in _TRIVIAL and value not in _TRIVIAL[axis] and read and axis not in read:
            text = (
                f"{axis}={value} had no effect: the program neither takes an argument of that name "
                f"nor reads the axis (ctx.point.get({axis!r}, ...)); if it always trains so, leave "
                "the axis out of the marker"
            )
            yield "in-effect", text
    zero = candidate.point.get("zero", 0)
    if is_unsharded(candidate):
        text = f"zero={zero} had no effect: every rank of dp keeps all of the optimizer's state"
        yield "in-effect", text


def _consequences(rung: RungTraces) -> Guard:
    """Yields a doubt for each axis that the program reads but that had no effect on its Run."""
    read = {axis for rank in rung.candidate.ranks for axis in rank.note("read_axis")}
    for axis, value in rung.candidate.point:
        if value in _TRIVIAL.get(axis, (value,)) or (read and axis not in read):
            continue
        why = why_without_effect(rung, axis)
        if why is not None:
            yield "in-effect", f"{axis}={value} had no effect: {why}"


def is_unsharded(candidate: Trace) -> bool:
    """Whether all dp ranks hold whole optimizer states, at a Point that should cut them."""
    return bool(candidate.point.get("zero", 0)) and _keep_all_states(candidate)


def _keep_all_states(candidate: Trace) -> bool:
    """Whether all dp ranks hold the same optimizer states, none of them sharded over dp or cp.

    False if no states are recorded: the recorder cannot read those of some optimizers.
    """
    pairs = list(_neighbours(candidate, "dp", _states_of))
    return bool(pairs) and all(
        _states_of(here) == _states_of(there)
        and not any(
            candidate.sizes.mesh.role(axis) in ("dp", "cp")
            for id in _states_of(here)
            for placement in here.tensors[id].layout
            for axis in axes_of(placement)
        )
        for here, there in pairs
    )


def _states_of(rank: RankTrace) -> frozenset[TensorId]:
    return frozenset(id for id in rank.tensors if id.kind == "optimizer_state")


def _neighbours(
    candidate: Trace, axis: str, share: Callable[[RankTrace], Collection[object]]
) -> Iterator[tuple[RankTrace, RankTrace]]:
    """Pairs of ranks whose coordinates differ only along `axis`.

    `axis` is a mesh axis, or a kind of parallelism such as "dp" that stands for all mesh axes of
    this kind.  Ranks for which `share` returns an empty collection are omitted.
    """
    ranks = [rank for rank in candidate.ranks if share(rank)]
    members = {*candidate.sizes.mesh.members(axis)}
    for place, here in enumerate(ranks):
        for there in ranks[place + 1 :]:
            if {*_apart(here, there)} <= members:
                yield here, there


def _apart(here: RankTrace, there: RankTrace) -> list[str]:
    """The mesh axes along which two ranks have different coordinates."""
    return [axis for axis, at in here.coordinates.items() if there.coordinates[axis] != at]


def _inputs_of(rank: RankTrace) -> tuple[str, ...]:
    """The hashes of all inputs that a rank received."""
    return tuple(digest for event in rank.inputs for digest in event.hashes)


def _work_of(candidate: Trace) -> Callable[[RankTrace], tuple[str, ...]]:
    """A function that returns a rank's inputs; its losses and gradients if no inputs are recorded.

    The inputs of a model that runs inside a compiled region are not recorded.
    """
    return _inputs_of if any(map(_inputs_of, candidate.ranks)) else _results_of


def _results_of(rank: RankTrace) -> tuple[str, ...]:
    return tuple(
        event.hash for id, event in rank.tensors.items() if id.kind in ("loss", "param_grad")
    )


def _data_of(rank: RankTrace) -> tuple[str, ...]:
    """The hashes of the inputs of the model's first stage; () for other stages.

    The inputs of later stages, and of later chunks on a rank, are outputs of earlier ones, which
    with sp are sharded over tp.
    """
    if rank.coordinates["pp"]:
        return ()
    first = {(event.step, event.microbatch): event.hashes for event in reversed(rank.inputs)}
    return tuple(digest for when in sorted(first) for digest in first[when])


def _modules_of(rank: RankTrace) -> frozenset[str]:
    return frozenset(rank.modules)


def _skipped(rung: RungTraces) -> Guard:
    """Yields a doubt for each optimizer step that the candidate skipped, unlike the reference."""
    expected = {why for rank in rung.reference.ranks for why in rank.note("skipped")}
    found = [why for rank in rung.candidate.ranks for why in rank.note("skipped")]
    for why in dict.fromkeys(why for why in found if why not in expected):
        yield (
            "skipped-step",
            f"the candidate skipped an optimizer step, unlike the reference: {why}",
        )


def _dropout(candidate: Trace) -> Guard:
    for rank in candidate.ranks:
        rates = rank.note("dropout")
        if rates and rank.steps and all(s.rng_before == s.rng_after for s in rank.steps):
            yield (
                "dropout",
                f"dropout {rates[0]} is on, but drew no random numbers on rank {rank.rank}",
            )
            return


def _sensitive(comparison: Comparison) -> Guard:
    for kind, compared in comparison.compared.items():
        blind = [id for id in comparison.insensitive if id.kind == kind]
        if len(blind) > MAX_INSENSITIVE * compared:
            text = (
                f"rounding may change {len(blind)} of {compared} tensors of kind {kind}, such as "
                f"{blind[0].path}, by as much as their own size, so a bug would not show there"
            )
            yield f"sensitive:{kind}", text


def _zeros(comparison: Comparison) -> Guard:
    zero, compared = comparison.zero["activation"], comparison.compared["activation"]
    if zero > MAX_ZERO * compared:
        text = (
            f"{zero} of {compared} forward activations of the reference are zero everywhere, so "
            "an error in a layer would not show. Initialize the parameters, as ctx.initialize does"
        )
        yield "zeros", text


def _measured(rung: RungTraces) -> Guard:
    if not rung.numbers.exact and rung.perturbed is None and rung.shadow is None:
        yield "measured", "no rounding was measured, so only tensors with equal bits could pass"


def _decided(comparison: Comparison) -> Guard:
    suspects = comparison.suspects
    if suspects:
        text = (
            f"{len(suspects)} tensors, such as {suspects[0]}, differ from the reference by their "
            "sketches (random projections), but were not judged, because their values were not "
            "recorded; record all values with --trainsafe-record full"
        )
        yield "sketched", text
