"""The errors of exact arithmetic: each names the operator and what to do."""

from __future__ import annotations

from pytest_trainsafe.errors import TrainsafeError


class ExactError(TrainsafeError):
    """A program cannot be executed on exact numbers; the message names the operator."""


class MissingSemanticsError(ExactError):
    """An operator has no semantics in the table; `operator` is its name, such as "aten.add"."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        super().__init__(
            f"{operator} has no semantics for exact numbers; state them with "
            f'@semantics_of("{operator}", examples=...) from pytest_trainsafe.arithmetic, '
            "as a function of Numbers and the operator's arguments, "
            "and test them with check_semantics"
        )


class UnseenNumberError(ExactError):
    """A float tensor reaches an operator, and no operator of this mode made or entered it."""


class UndecidedError(ExactError):
    """A comparison or choice has no decision from a run with real numbers, or another one."""


class NoInverseError(ExactError):
    """A divisor is zero modulo one of the primes by chance, and so has no inverse."""

    def __init__(self) -> None:
        super().__init__(
            "a divisor of this sample is a multiple of one of the two primes, by a chance of about "
            "one in a thousand million for each division; draw another sample"
        )


class NarrowCastError(ExactError):
    """An exact number is cast to a dtype whose cast has no semantics."""


class ChangedInFlightError(ExactError):
    """A program has changed what it gave to an asynchronous call before it waited for it."""

    def __init__(self, operator: str) -> None:
        super().__init__(
            f"the tensor that {operator} was given was changed before the program waited for the "
            "call, so other ranks may get either value; wait first, or change a copy"
        )
