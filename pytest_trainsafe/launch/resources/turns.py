"""Which group of ranks may start next: the rule of the queue, without files or clocks.

A budget is the number of ranks that a test run allows at once on this machine (`--trainsafe-slots`,
or one for each core).  Test runs of one user may have different budgets:

* Ranks of a run with a smaller or equal budget count in a budget; ranks of a run with a larger one
  do not.  A run that allows itself two ranks starts beside one that holds seven of eight.
* All ranks together never exceed the largest budget of the groups concerned.
* The test run with the fewest ranks at work is next, and of its groups the one that arrived first:
  a run of one test is not held up by all that a large run has asked for before.
* A group passes one that is before it in this order only if it takes nothing that the other waits
  for: the other waits for its own budget, in which this group does not count.

So each group that waits is next at some time, and a group whose own budget is used up holds nobody
else back.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from pytest_trainsafe.core.prepared import prepared
from pytest_trainsafe.launch.resources import gpus
from pytest_trainsafe.launch.task import Device

#: The longest text that a claim may hold about its test run.
MAX_TEXT = 300


@prepared
class Claim(msgspec.Struct, frozen=True):
    """What a group of ranks needs, or has.

    `gpus` are entries of CUDA_VISIBLE_DEVICES: while the group waits, those that it could use;
    later those that it has leased.  `budget` is the number of ranks that its test run allows at
    once, 0 in claims of versions that did not write it.  `run` identifies the test run, and
    `process` and `folder` are shown to others that wait for it.
    """

    ranks: int
    device: Device
    gpus: tuple[str, ...] = ()
    budget: int = 0
    run: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)] = ""
    process: int = 0
    folder: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)] = ""

    def competes(self, other: Claim) -> bool:
        """Whether both claims need cores, or need GPUs that may be the same."""
        if self.device != other.device:
            return False
        return self.device == "cpu" or any(
            gpus.same(one, two) for one in self.gpus for two in other.gpus
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """Whether a group may start.

    `gpus` are the GPUs that it gets.  `next` says whether only running groups, not waiting ones,
    keep it from starting.
    """

    starts: bool
    gpus: tuple[str, ...] = ()
    next: bool = True


def turn(
    claim: Claim, held: Sequence[Claim], earlier: Sequence[Claim], later: Sequence[Claim] = ()
) -> Turn:
    """Whether the group of `claim` may start.

    `held` are the claims of running groups, `earlier` and `later` those of groups that wait and
    arrived before or after it, in order.  All of them compete with `claim`.
    """
    at_work = Counter[str]()
    for each in held:
        at_work[each.run] += each.ranks
    queue = sorted([*earlier, claim, *later], key=lambda each: at_work[each.run])
    before = list(itertools.takewhile(lambda each: each is not claim, queue))
    if claim.device == "cuda":
        return _turn_on_gpus(claim, held, before)
    running = list(held)
    largest = max(each.budget for each in (claim, *held, *before))
    for other in before:
        own, together = _room(other, running, largest)
        if own and together:
            running.append(other)  # it starts as soon as it looks
        elif not together or claim.budget <= other.budget:
            return Turn(starts=False, next=False)
    own, together = _room(claim, running, largest)
    return Turn(own and together, next=len(running) == len(held))


def _room(claim: Claim, running: Sequence[Claim], largest: int) -> tuple[bool, bool]:
    """Whether the group fits into its own budget, and into the largest one of all groups.

    A group that is larger than a budget fits into it alone.
    """
    counted = sum(each.ranks for each in running if each.budget <= claim.budget)
    own = not counted or counted + claim.ranks <= claim.budget
    every = sum(each.ranks for each in running)
    return own, not every or every + claim.ranks <= largest


def _turn_on_gpus(claim: Claim, held: Sequence[Claim], before: Sequence[Claim]) -> Turn:
    if before:
        return Turn(starts=False, next=False)
    taken = [word for each in held for word in each.gpus]
    free = [word for word in claim.gpus if not any(gpus.same(word, other) for other in taken)]
    needed = min(claim.ranks, len(claim.gpus))
    return Turn(len(free) >= needed, tuple(free[:needed]))
