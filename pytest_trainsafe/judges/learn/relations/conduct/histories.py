"""Judges the texts of two ranks, step by step, for `relations/alike.py`.

Each function takes the pairs of texts in order, and says of each pair whether it keeps the claim;
None if it says nothing of the claim.
"""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[str, str]

#: How exactly factors are equal: the norms that they follow from are rounded.
_EQUAL = 0.01
#: How exactly norms are equal that were clipped to one limit, how much the sums of gradients with
#: other elements differ, and in how many steps that is no chance.
_LIMIT, _SUMS, _OFTEN = 1e-5, 1e-2, 2
#: Ranks that have such a share of an epoch in common have divided it wrongly: a smaller share is
#: padding, and with a larger one both read the whole epoch.
_LEAST, _MOST, _SEVERAL = 0.1, 0.9, 3
#: The length of a hash in a text of examples.
_HASH = 8


def equal(pairs: Sequence[Pair]) -> list[bool | None]:
    """Equal texts keep the claim."""
    return [mine == its for mine, its in pairs]


def different(pairs: Sequence[Pair]) -> list[bool | None]:
    """Different texts keep the claim."""
    return [mine != its for mine, its in pairs]


def declared(pairs: Sequence[Pair]) -> list[bool | None]:
    """What two ranks have declared for one mesh is equal.

    A text has a hash of each mesh, and after "=" one of what was declared for it.
    """
    found: list[bool | None] = []
    for mine, its in pairs:
        ours, theirs = _by_mesh(mine), _by_mesh(its)
        found.append(all(theirs.get(mesh, each) == each for mesh, each in ours.items()))
    return found


def factors(pairs: Sequence[Pair]) -> list[bool | None]:
    """Numbers that are nearly equal keep the claim."""
    return [
        abs(float(mine) - float(its)) <= _EQUAL * max(float(mine), float(its))
        for mine, its in pairs
    ]


def batches(pairs: Sequence[Pair]) -> list[bool | None]:
    """Batches that differ keep the claim, unless a part that is drawn anew in each step is equal.

    A text has a hash of the whole batch, and one of each tensor, "-" for what is not drawn.
    """
    found: list[bool | None] = []
    before: list[str] = []
    for mine, its in pairs:
        (whole, *parts), (other, *others) = mine.split(), its.split()
        drawn = len(before) == len(parts) == len(others) and any(
            part == one != "-" and part != was
            for part, one, was in zip(parts, others, before, strict=True)
        )
        found.append(whole != other and not drawn)
        before = parts
    return found


def staying(pairs: Sequence[Pair]) -> list[bool | None]:
    """What is equal in the first pair is equal in the next ones, which keep the claim.

    Texts may begin with a number and a colon, that of the optimizer whose weights they are about.
    """
    first: dict[tuple[str, str], bool] = {}
    found: list[bool | None] = []
    for pair in pairs:
        (mine, _), (its, _) = (_parts(each) for each in pair)
        begins = (mine, its) not in first
        owed = first.setdefault((mine, its), pair[0] == pair[1])
        found.append(None if begins or not owed else pair[0] == pair[1])
    return found


def apart(pairs: Sequence[Pair]) -> list[bool | None]:
    """What has differed does not become equal."""
    found: list[bool | None] = []
    differed = False
    for pair in pairs:
        (_, mine), (_, its) = (_parts(each) for each in pair)
        found.append(not differed or mine != its)
        differed |= mine != its
    return found


def tables(pairs: Sequence[Pair]) -> list[bool | None]:
    """A table of one rank that begins equal to another weight of the other stays equal to it.

    A text has a hash of each large weight, after "e" if the rank embeds by it.
    """
    found: list[bool | None] = []
    owed: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for pair in pairs:
        (mine, ours), (its, theirs) = (_parts(each) for each in pair)
        weights = ours.split(), theirs.split()
        shared = owed.setdefault((mine, its), _tied(*weights))
        kept = all(
            max(at, to) >= min(map(len, weights)) or weights[0][at][1:] == weights[1][to][1:]
            for at, to in shared
        )
        found.append(kept)
    return found


def shares(pairs: Sequence[Pair]) -> list[bool | None]:
    """The examples that two ranks read in an epoch do not overlap, or are all the same.

    An epoch is found by what is read again: it ends where both ranks read an example once more,
    and it is judged if the epoch before had as many steps, and other examples.
    """
    found: list[bool | None] = []
    now: tuple[set[str], set[str]] = set(), set()
    before: tuple[set[str], set[str]] = set(), set()
    length = last = 0
    for pair in pairs:
        rows = [_rows(each) for each in pair]
        again = [bool(rows[rank] & now[rank]) for rank in (0, 1)]
        kept = True
        if any(again):
            if all(again) and length == last > 1 and before[0] != now[0] and before[1] != now[1]:
                common, every = len(now[0] & now[1]), min(map(len, now))
                kept = common < _SEVERAL or not _LEAST <= common / every <= _MOST
            last = length if all(again) else 0
            before, now, length = now, (set(), set()), 0
        for rank in (0, 1):
            now[rank].update(rows[rank])
        length += 1
        found.append(kept)
    return found


def norms(pairs: Sequence[Pair]) -> list[bool | None]:
    """Gradients with other elements, by their sum, have another norm.

    A text has the number of the optimizer, a norm and a sum.  Once may be chance.
    """
    found: list[bool | None] = []
    often = 0
    for pair in pairs:
        (mine, ours), (its, theirs) = (_parts(each) for each in pair)
        if mine == its and "none" not in (ours, theirs):
            (norm, total), (other, its_total) = (
                map(float, each.split()) for each in (ours, theirs)
            )
            equal = abs(norm - other) <= _LIMIT * norm
            often += equal and abs(total - its_total) > _SUMS * norm
            found.append(not (equal and often >= _OFTEN))
        else:
            found.append(True)
    return found


def _by_mesh(text: str) -> dict[str, str]:
    pairs = (each.partition("=") for each in text.split())
    return {mesh: declared for mesh, _, declared in pairs}


def _parts(text: str) -> tuple[str, str]:
    """The number before the colon of a text, "" if there is none, and the rest."""
    number, colon, rest = text.partition(":")
    return (number, rest) if colon else ("", text)


def _tied(mine: Sequence[str], its: Sequence[str]) -> list[tuple[int, int]]:
    """The places of weights that are equal, where one rank only embeds by them.

    Ranks that hold the same weights are replicas, in which a copy need not be tied.
    """
    hashes = [{each: at for at, each in enumerate(side) if each != "none"} for side in (mine, its)]
    found = []
    for one, other, swapped in ((0, 1, False), (1, 0, True)):
        for each, at in hashes[one].items():
            to = hashes[other].get(f"w{each[1:]}")
            alone = f"w{each[1:]}" not in hashes[one] and each not in hashes[other]
            if each[0] == "e" and to is not None and alone:
                found.append((to, at) if swapped else (at, to))
    return found


def _rows(text: str) -> set[str]:
    if text == "none":
        return set()
    return {text[at : at + _HASH] for at in range(0, len(text), _HASH)}
