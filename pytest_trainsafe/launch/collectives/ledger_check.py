"""Compares the ledgers of all ranks and finds the collectives on which they disagree.

The ranks of each group must make the same calls in the same order, and a send must match a recv
of the same size.  Legitimate differences (call sites, object sizes, unequal parts of an
all_to_all) are not mismatches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytest_trainsafe.launch.collectives.collective import Collective
from pytest_trainsafe.launch.collectives.parting import parting

Ledgers = Sequence[Sequence[Collective]]
_GroupKey = tuple[str, tuple[int, ...]]
_Lane = tuple[str, int, int, int]

#: Operations that may send parts of different shapes to different ranks; `gives` and `takes` say
#: which sizes must match.
_BY_PARTS = ("all_gather", "reduce_scatter", "all_to_all", "all_to_all_single", "gather", "scatter")


class Mismatch(NamedTuple):
    """One disagreement: a sentence, the program's line of one of its calls, and the process group.

    The group is None for a send or recv.
    """

    text: str
    at: str
    group: _GroupKey | None = None


#: What disagrees, and one of the calls that do.
_Found = tuple[str, Collective]

#: A rank, and the collectives that it made in a group.
_Made = tuple[int, Sequence[Collective]]


def check_ledgers(ledgers: Ledgers, finished: Sequence[bool]) -> list[Mismatch]:
    """The first mismatch of every process group; empty if all ranks agree.

    `finished` says which ranks' programs returned.  A missing call is a mismatch only on these,
    because a rank that was stopped may not have reached the call yet.
    """
    return [*_check_collectives(ledgers, finished), *_check_p2p(ledgers, finished)]


def self_talk(ledgers: Ledgers, failed: Sequence[bool]) -> list[str]:
    """A sentence for each failed rank whose last call is a send to, or recv from, itself."""
    return [
        f"rank {rank} communicates with itself: {ledger[-1]}"
        for rank, ledger in enumerate(ledgers)
        if failed[rank] and ledger and ledger[-1].is_p2p and ledger[-1].peer == rank
    ]


def _check_collectives(ledgers: Ledgers, finished: Sequence[bool]) -> Iterator[Mismatch]:
    calls: dict[_GroupKey, dict[int, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    for rank, ledger in enumerate(ledgers):
        for call in ledger:
            if not call.is_p2p:
                calls[call.group, call.ranks][rank].append(call)
    for (name, members), by_rank in calls.items():
        known = [rank for rank in members if rank < len(ledgers)]
        found = _first_mismatch(members, {rank: by_rank[rank] for rank in known}, finished)
        if found is not None:
            yield _mismatch(found, (name, members))


def _first_mismatch(
    members: tuple[int, ...], calls: dict[int, list[Collective]], finished: Sequence[bool]
) -> _Found | None:
    group = f"the group of ranks {list(members)}"
    names = {rank: {call.name for call in made} for rank, made in calls.items()}
    for number in range(max(map(len, calls.values()), default=0)):
        made = {rank: all_[number] for rank, all_ in calls.items() if number < len(all_)}
        for one, other in _pairs(list(made)):
            why = _disagree(made[one], made[other], members.index(one), members.index(other))
            if not why and _swapped(made[one].name, made[other].name, names[one], names[other]):
                why = "the same tensors in another order"
            if why:
                text = (
                    f"collective {number + 1} of {group} differs ({why}): "
                    f"rank {one} {made[one]}; rank {other} {made[other]}"
                )
                return _parted(text, made[one], number, (one, calls[one]), (other, calls[other]))
        missing = [rank for rank in calls if rank not in made]
        done = [rank for rank in missing if finished[rank]]
        if done:
            one = min(made)
            own = len(calls[done[0]])
            text = (
                f"collective {number + 1} of {group} is made by rank {one} but not by "
                f"rank {done[0]}, which finished after {own or 'no'} collective{'s' * (own != 1)} "
                f"of this group: rank {one} {made[one]}"
            )
            return _parted(text, made[one], number, (one, calls[one]), (done[0], calls[done[0]]))
        if missing:
            return None
    return None


def _parted(text: str, call: Collective, number: int, one: _Made, other: _Made) -> _Found:
    """A mismatch of two ranks, with the earlier collective at which they part, if there is one."""
    (rank, mine), (other_rank, theirs) = one, other
    found = parting([_lines(each) for each in mine], [_lines(each) for each in theirs])
    if found is None or found.at >= number:
        return text, call
    at = found.at
    if not (mine[at].site and theirs[at].site):
        return text, call
    places = sorted([(rank, mine[at]), (other_rank, theirs[at])], key=lambda each: each[0])
    calls = ", ".join(f"rank {each} {made.op} at {made.line}" for each, made in places)
    earlier = any(_lines(a) != _lines(b) for a, b in zip(mine[:at], theirs[:at], strict=True))
    first = "first call from different lines"
    how = "call from different lines and stay out of step" if earlier else first
    parted = f"the ranks part at collective {at + 1}, where they {how}: {calls}"
    return f"{parted}; {text}", mine[at] if found.by_first else theirs[at]


def _lines(call: Collective) -> tuple[str, str]:
    return call.site, call.user


def _mismatch(found: _Found, group: _GroupKey | None = None) -> Mismatch:
    text, call = found
    return Mismatch(f"collective mismatch: {text}", call.user or call.site, group)


def _pairs(ranks: list[int]) -> Iterator[tuple[int, int]]:
    """Yields the first rank paired with every other rank.

    Other pairs need no comparison, because the calls of all ranks must be equal.
    """
    return ((ranks[0], other) for other in ranks[1:])


def _disagree(a: Collective, b: Collective, a_at: int, b_at: int) -> str:
    """Why two ranks' calls cannot be one collective; "" if they can."""
    if a.op != b.op:
        return "operation"
    if a.reduce != b.reduce:
        return "reduction"
    if a.detail != b.detail:
        return "arguments"
    if a.root != b.root:
        return "root"
    if a.dtype != b.dtype:
        return "dtype"
    if a.op in _BY_PARTS:
        return _parts_disagree(a, b, a_at, b_at) or _parts_disagree(b, a, b_at, a_at)
    if a.numel != b.numel:
        return "number of elements"
    if a.shape is not None and b.shape is not None and _squeezed(a.shape) != _squeezed(b.shape):
        return "shape"
    return ""


def _parts_disagree(giver: Collective, taker: Collective, giver_at: int, taker_at: int) -> str:
    """How the part that `giver` sends differs from the part that `taker` receives.

    Returns "" if the parts agree, or if a call does not record its parts.  `giver_at` and
    `taker_at` are the positions of the two ranks in their group.
    """
    if giver.gives is None or taker.takes is None:
        return ""
    if max(giver_at, taker_at) >= min(len(giver.gives), len(taker.takes)):
        return "number of parts"
    given, taken = giver.gives[taker_at], taker.takes[giver_at]
    return f"{given} elements sent, {taken} received" if given != taken else ""


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without dimensions of size 1: a broadcast from () into (1,) is harmless."""
    return tuple(size for size in shape if size != 1)


def _swapped(a: str, b: str, all_of_a: set[str], all_of_b: set[str]) -> bool:
    """Whether two ranks seem to pass the same tensors to their collectives in different orders.

    `a` and `b` are the names of the tensors that the two ranks pass to one collective; "" if a
    tensor has no name.  `all_of_a` are the names in all calls of the rank that passes `a`, and
    `all_of_b` those of the other rank.  The result is True if `a` and `b` differ and a rank uses
    both of them.  Different names alone are not a mismatch: each pipeline stage has its own name
    for tied embeddings.
    """
    return bool(a and b) and a != b and (a in all_of_b or b in all_of_a)


def _check_p2p(ledgers: Ledgers, finished: Sequence[bool]) -> Iterator[Mismatch]:
    lanes: dict[_Lane, tuple[list[Collective], list[Collective]]] = defaultdict(lambda: ([], []))
    any_source = set()
    for rank, ledger in enumerate(ledgers):
        for call in ledger:
            if call.op == "send" and call.peer is not None:
                lanes[call.group, rank, call.peer, call.tag][0].append(call)
            elif call.op == "recv" and call.peer is not None:
                lanes[call.group, call.peer, rank, call.tag][1].append(call)
            elif call.op == "recv":
                any_source.add((call.group, rank))
    for (group, source, target, _), (sends, recvs) in sorted(lanes.items()):
        if (group, target) in any_source:  # it is not known which send the recv matched
            continue
        found = _first_p2p(source, target, sends, recvs, finished)
        if found is not None:
            yield _mismatch(found)


def _first_p2p(
    source: int,
    target: int,
    sends: list[Collective],
    recvs: list[Collective],
    finished: Sequence[bool],
) -> _Found | None:
    for number, (send, recv) in enumerate(zip(sends, recvs, strict=False)):
        if send.numel != recv.numel or send.dtype != recv.dtype:
            text = (
                f"send {number + 1} from rank {source} to rank {target} does not fit its recv: "
                f"rank {source} {send}; rank {target} {recv}"
            )
            return text, send
    both = min(len(sends), len(recvs))
    if len(sends) > both and target < len(finished) and finished[target]:
        text = (
            f"send {both + 1} from rank {source} to rank {target} is never received: "
            f"rank {source} {sends[both]}"
        )
        return text, sends[both]
    if len(recvs) > both and source < len(finished) and finished[source]:
        text = (
            f"recv {both + 1} by rank {target} from rank {source} has no matching send: "
            f"rank {target} {recvs[both]}"
        )
        return text, recvs[both]
    return None
