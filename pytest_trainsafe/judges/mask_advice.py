"""What to do about dropout whose masks are wrong or differ: one advice, and when another applies.

Called by the comparison and by the rules on random numbers, so that their reports agree.
"""

from __future__ import annotations


def mask_advice(axis: str, *, compared: bool, parts: bool = False) -> str:
    """A clause for reports on masks that ranks of `axis` draw from one random stream.

    `compared` says that the test compares the ranks with a single device, and `parts` that they
    mask parts of one tensor, instead of different data.
    """
    seeded = (
        f"seed a second generator from the rank on {axis}, and use it where activations are sharded"
        if parts
        else f"add the rank on {axis} to the seed from which dropout is drawn"
    )
    if not compared:
        return f"{seeded}. To compare with a single device too, {_by_example(parts)}"
    return (
        f"{_by_example(parts)}. For a test that only judges the draws (assert_rng), {seeded} "
        "instead: such masks never equal those of a single device"
    )


def by_example(parts: bool = False) -> str:
    """The clause for ranks that draw from streams of their own, which no single device repeats."""
    return f"{_by_example(parts)}, or switch dropout off in this test and judge it by assert_rng"


def _by_example(parts: bool) -> str:
    where = " and the positions of the rank's part" if parts else ""
    return (
        "use pytest_trainsafe.per_example_dropout, with one seed on all ranks, each example's own "
        f"index{where}: its masks do not depend on the ranks"
    )
