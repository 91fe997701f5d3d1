"""A rung of the precision ladder: one number system in which a program is run and judged."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pytest_trainsafe.errors import ArgumentError

if TYPE_CHECKING:
    import torch

    from pytest_trainsafe.core.rungs.arithmetic import Arithmetic
    from pytest_trainsafe.core.rungs.rank_run import RankRun

#: Turns real values into numbers of a rung.
Enter = Callable[["torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True, eq=False, repr=False)  # every start of pytest makes this class
class Rung:
    """One number system.  A project derives a class to define what its ranks do (`around`).

    Its numbers:
        name        the name by which users select it, such as "float64"
        host        the name of the torch dtype that carries its numbers; "" if no program runs in
                    it, because it only says how values are rounded on the way
        method      the method of a tensor that casts to `host`
        arithmetic_path  the import path of its Arithmetic

    How it rounds; the defaults are those of exact numbers:
        epsilon     the distance from 1 to the next larger number: the relative size of a rounding
                    error, and of the noise that measures how a program responds to rounding.  0 for
                    exact numbers: their Runs get no noise, and only equal values pass
        safety      the ratio of the allowed error to the measured response.  float64 has the
                    largest for two reasons.  In float64, only noise measures the response; in
                    other dtypes, the distance from a float64 run measures it as well.  And the
                    smallest errors that bugs cause in float64, 1e-12, are much larger than the
                    allowed error even with this ratio
        floor       sets the smallest response that is assumed for a tensor: `floor * epsilon *
                    norm`, where `norm` is the tensor's norm.  A response that is measured with few
                    samples of noise can be too small by chance, especially for a scalar
        low         whether the norm of the rounding errors may exceed the norm of an error that
                    multiplies all values by, say, 1.01.  Then the projection of the error on the
                    reference is judged as well, because it shows such a factor
        steady      the largest allowance, relative to a tensor, that is taken for rounding.  A
                    larger one makes the comparison inconclusive
        resampled   a failure is measured with more noise if its error divided by the allowance is
                    below this
        narrower    the names of the dtypes that a bug may round values of this rung to

    What the ladder does with it:
        measured_by the rung in which a further Run of the reference measures rounding, "" for none
        replays     whether rounding may change decisions, such as the choices of a top-k, so that
                    all Runs replay those of the reference
        decided_by  the rung whose reference makes the decisions that all Runs replay, for numbers
                    that have no order; "" for none
        follows     the rung that decides in place of this one: each Run takes the decisions of
                    the Run of the same program at the same Point in that rung; "" for none
        optional    whether programs may be unable to run in it; the default ladder then skips it
        casts       whether its rounding is negligible, so that a cast to a narrower dtype in the
                    program determines how large errors may be
        device      the type of device that its Runs need, "" for that of the test
        judge       the name of the judge that judges Runs in it

    `safety` and `floor` were calibrated on clean programs; docs/tolerances.md has the figures.
    """

    name: str
    host: str
    epsilon: float = 0.0
    safety: float = 1.0
    floor: float = 0.0
    low: bool = False
    steady: float = math.inf
    resampled: float = 0.0
    narrower: tuple[str, ...] = ()
    measured_by: str = ""
    replays: bool = False
    decided_by: str = ""
    follows: str = ""
    optional: bool = False
    casts: bool = False
    device: str = ""
    judge: str = "compare"
    method: str = ""
    arithmetic_path: str = "pytest_trainsafe.core.rungs.floating:FLOATING"

    @property
    def exact(self) -> bool:
        """Whether nothing is rounded, so that equal means equal."""
        return self.epsilon == 0.0

    @property
    def encloses(self) -> bool:
        """Whether `around` computes the program's operators, so that the recorder's must not be."""
        return self.exact

    @property
    def awaits_decisions(self) -> bool:
        """Whether Runs of a program that makes decisions start after some of its reference."""
        return self.replays or bool(self.decided_by)

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype that carries the numbers; the rung must have a `host`."""
        import torch

        found = getattr(torch, self.host, None)
        assert isinstance(found, torch.dtype), self.name
        return found

    @functools.cached_property
    def arithmetic(self) -> Arithmetic:
        """How the numbers are computed with, compared and stored.

        Raises ArgumentError if the import path does not lead to an arithmetic of such numbers.
        """
        from pkgutil import resolve_name  # every start of pytest imports this module

        try:
            found = cast("Arithmetic", resolve_name(self.arithmetic_path))
            exact = found.exact
        except (ImportError, AttributeError) as error:
            raise ArgumentError(
                f"the rung {self.name!r} has no arithmetic at {self.arithmetic_path!r} ({error}); "
                "arithmetic_path must be the import path of an Arithmetic"
            ) from error
        if exact != self.exact:
            raise ArgumentError(
                f"the rung {self.name!r} has epsilon={self.epsilon:g}, but the arithmetic "
                f"{self.arithmetic_path!r} has exact={exact}; exact numbers have no epsilon, and "
                "rounded ones need one"
            )
        return found

    def around(self, run: RankRun) -> AbstractContextManager[Enter]:
        """Encloses the program in each rank, where operators must compute in other numbers.

        Yields the function that turns real values, such as initial parameters and data, into
        numbers of the rung; only rungs that enclose the program's operators need one.
        """
        return nullcontext(_unchanged)


def _unchanged(values: torch.Tensor) -> torch.Tensor:
    return values
