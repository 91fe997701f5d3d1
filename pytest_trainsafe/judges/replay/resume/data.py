"""Finds the inputs that the resumed Run passes to the model instead of the uninterrupted one's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_trainsafe.core.finding import RankSubject, StepSubject
from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.judges.replay.resume.continued import inputs_by_call
from pytest_trainsafe.judges.replay.resume.difference import Difference
from pytest_trainsafe.trace.facts import EpochRead
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.rng.events import WorkerDraw
from pytest_trainsafe.trace.schema import InputEvent

_POSITION = (
    "save how many batches of the epoch were read, as state_dict() of a StatefulDataLoader does, "
    "and begin the resumed training after them"
)
_ORDER = (
    "check what decides which examples are read, and in which order: the sampler's epoch "
    "(set_epoch) and generator, the position in the data, the batch size, and counters or buffers "
    "of the program"
)
_WORKERS = (
    "; the workers of its loader begin with fresh random streams, so random augmentation differs: "
    "draw it from a generator per example (PerExampleDataset)"
)
_EPOCH = (
    "call sampler.set_epoch(epoch) with the epoch that is resumed, before the loader is iterated "
    "over"
)
_CARRIED = (
    "a tensor that the program carries from one step to the next, such as a hidden state, must be "
    "saved and loaded"
)

#: The step, the micro-batch, and the number of the call of the model within it.
_Call = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of one call that differs: `was` in the uninterrupted Run, `now` in the resumed."""

    one: RankTrace
    other: RankTrace
    call: _Call
    was: tuple[str, ...]
    now: tuple[str, ...]

    @property
    def begin(self) -> str:
        """A text that names the step, the micro-batch and the rank."""
        return f"step {self.call[0]}, micro-batch {self.call[1]} of rank {self.one.rank}"

    @property
    def differing(self) -> list[int]:
        """The positions of the inputs that differ; all, if the Runs pass different numbers."""
        if len(self.was) != len(self.now):
            return list(range(len(self.now)))
        return [n for n, (a, b) in enumerate(zip(self.was, self.now, strict=True)) if a != b]

    def evidence(self, *, known: bool) -> tuple[tuple[str, int | bool], ...]:
        """Where the inputs differ; `known` is whether the uninterrupted Run reads them too."""
        return (("step", self.call[0]), ("microbatch", self.call[1]), ("known", known))

    def name(self, number: int) -> str:
        """The name of an input, such as "input.0"."""
        step, microbatch, call = self.call
        names = [
            id.name
            for id in self.other.tensors
            if (id.step, id.microbatch, id.kind, id.call) == (step, microbatch, "input", call)
        ]
        return names[number] if len(names) == len(self.now) else f"input tensor {number}"


def data_difference(whole: Trace, resumed: Trace) -> Difference | None:
    """The first input of the model that differs in the resumed Run; None if all are equal.

    If inputs of several ranks differ, it is the one of the earliest step, and its message names
    the other ranks too.

    In its evidence, "known" is whether the uninterrupted Run reads all inputs of that call
    together anywhere. Its code is "unknown" if only some of the inputs differ and they are probably
    not data.
    """
    found: list[Difference] = []
    for one, other in zip(whole.ranks, resumed.ranks, strict=True):
        wanted, now = inputs_by_call(one), inputs_by_call(other)
        call = next((call for call in now if wanted.get(call, now[call]) != now[call]), None)
        if call is not None:
            found.append(_difference(whole, _Inputs(one, other, call, wanted[call], now[call])))
    if not found:
        return None
    alike: dict[object, list[Difference]] = {}
    for each in sorted(found, key=lambda each: int(dict(each.evidence)["step"])):
        alike.setdefault(_reason(each), []).append(each)
    first, *others = map(_joined, alike.values())
    texts = [first.message, *(each.message.partition(": ")[2] for each in others)]
    return replace(first, message="; ".join(texts))


def _reason(found: Difference) -> object:
    """What is the same on all ranks that read wrong inputs for one reason."""
    where = dict(found.evidence)
    read = where.get("read_step"), where.get("read_rank", found.rank) == found.rank
    return found.code, found.cause, where["step"], where["known"], read


def _joined(found: Sequence[Difference]) -> Difference:
    """The first of the differences of several ranks; its message also names the other ranks."""
    ranks = [each.rank for each in found[1:]]
    text = f"{found[0].message}; {name_ranks(ranks)} likewise" if ranks else found[0].message
    return replace(found[0], message=text)


def epoch_difference(saved: Trace, resumed: Trace, data: Difference) -> Difference | None:
    """The sampler that gave the inputs of `data` in the order of another epoch; None if none did.

    The epoch counts that a sampler has when it begins to give an order, since a program may set it
    at any time before.
    """
    place = dict(data.evidence)
    call = int(place["step"]), int(place["microbatch"])
    was, now = (_epochs(trace.ranks[data.rank], call) for trace in (saved, resumed))
    name = next((name for name in now if was.get(name, now[name]) != now[name]), None)
    if name is None:
        return None
    return Difference(
        "data_order",
        f"the sampler is not restored: on rank {data.rank} {name}.epoch is {now[name]}, not "
        f"{was[name]}",
        _EPOCH,
        data.rank,
        subject=RankSubject(data.rank),
        evidence=(("name", f"{name}.epoch"), ("value", now[name]), ("expected", was[name])),
    )


def _epochs(rank: RankTrace, call: tuple[int, int]) -> dict[str, str]:
    """The epoch of the last order that each sampler began to give before a call of the model."""
    found = {}
    for event in rank.events:
        if isinstance(event, EpochRead):
            found[event.sampler] = event.epoch
        elif isinstance(event, InputEvent) and (event.step, event.microbatch) == call:
            break
    return found


def _difference(whole: Trace, inputs: _Inputs) -> Difference:
    step, rank = inputs.call[0], inputs.one.rank
    differing = inputs.differing
    place = _read_at(whole, rank, inputs.now)
    if place is None and len(differing) < len(inputs.now) and _others_vary(inputs):
        return _of_arguments(whole, inputs)
    what, known = "the batch that", place is not None
    if place is None and len(inputs.now) > 1:
        places = {n: _read_at(whole, rank, inputs.now, n) for n in differing}
        number = next((n for n in differing if places[n] is not None), None)
        if number is not None:
            place, what = places[number], f"as {inputs.name(number)} what"
    if place is None:
        text = f"{inputs.begin} reads a batch that the uninterrupted training never reads"
        cause = _ORDER + (_WORKERS if inputs.other.events_of(WorkerDraw) else "")
        return _made(inputs, "the model's inputs are not resumed", text, cause, known=False)
    text = f"{inputs.begin} reads {what} the uninterrupted training reads in {_at(place, rank)}"
    cause = _POSITION if place[1] < step and place[0] == rank else _ORDER
    read = (("read_rank", place[0]), ("read_step", place[1]))
    return _made(inputs, "the data order is not resumed", text, cause, read, known=known)


def _of_arguments(whole: Trace, inputs: _Inputs) -> Difference:
    """Describes a call of the model in which some inputs differ and others are right."""
    rank = inputs.one.rank
    names = [inputs.name(n) for n in inputs.differing]
    right = [inputs.name(n) for n in range(len(inputs.now)) if n not in inputs.differing]
    begin = f"{inputs.begin} reads the right {' and '.join(right)}, but {' and '.join(names)}"
    places = {_read_at(whole, rank, inputs.now, n) for n in inputs.differing}
    place = places.pop() if len(places) == 1 else None
    verb = "differ" if len(names) > 1 else "differs"
    if place is None or not all(_stays_known(whole, inputs, n) for n in inputs.differing):
        return Difference(
            "unknown",
            f"an input of the model is not resumed: {begin} {verb}",
            f"{_CARRIED}; if {names[0]} is data, restore what it is made from",
            rank,
            subject=StepSubject(inputs.call[0]),
            evidence=inputs.evidence(known=False),
        )
    text = f"{begin} {'are those' if len(names) > 1 else 'is that'} of {_at(place, rank)}"
    cause = f"if {names[0]} is data, {_POSITION}; otherwise, {_CARRIED}"
    return _made(inputs, "the data order is not resumed", text, cause, known=False)


def _made(
    inputs: _Inputs,
    what: str,
    text: str,
    cause: str,
    read: tuple[tuple[str, int], ...] = (),
    *,
    known: bool,
) -> Difference:
    return Difference(
        "data_order",
        f"{what}: {text}",
        cause,
        inputs.one.rank,
        subject=StepSubject(inputs.call[0]),
        evidence=(*inputs.evidence(known=known), *read),
    )


def _others_vary(inputs: _Inputs) -> bool:
    """Whether an input that agrees in both Runs changes from step to step.

    If none does, their agreement does not show that the right batch is read.
    """
    right = set(range(len(inputs.now))) - set(inputs.differing)
    values = [event.hashes for event in inputs.one.inputs if len(event.hashes) == len(inputs.now)]
    return any(len({hashes[n] for hashes in values}) > 1 for n in right)


def _stays_known(whole: Trace, inputs: _Inputs, number: int) -> bool:
    """Whether the uninterrupted Run reads all later values of this input, too, as data are."""
    wanted = inputs_by_call(inputs.one)
    return all(
        wanted.get(call, hashes)[number : number + 1] == hashes[number : number + 1]
        or _read_at(whole, inputs.one.rank, hashes, number) is not None
        for call, hashes in inputs_by_call(inputs.other).items()
        if call >= inputs.call
    )


def _at(place: tuple[int, int, int], rank: int) -> str:
    owner, step, microbatch = place
    whose = "" if owner == rank else f" of rank {owner}"
    return f"step {step}, micro-batch {microbatch}{whose}"


def _read_at(
    whole: Trace, rank: int, hashes: tuple[str, ...], number: int | None = None
) -> tuple[int, int, int] | None:
    """The rank, step and micro-batch at which `whole` reads inputs with these hashes, or None.

    If `number` is given, only the input at this position is compared. Prefers `rank` to other
    ranks.
    """
    part = slice(None) if number is None else slice(number, number + 1)
    for each in sorted(whole.ranks, key=lambda each: each.rank != rank):
        for event in each.inputs:
            if event.hashes[part] == hashes[part] and len(event.hashes) == len(hashes):
                return each.rank, event.step, event.microbatch
    return None
