"""The errors of exact arithmetic: each names the operator and what to do."""

from __future__ import annotations

from pytest_trainsafe.errors import TrainsafeError


class ExactError(TrainsafeError):
    """A program cannot be executed on exact numbers; the message names the operator."""


class MissingSemanticsError(ExactError):
    """An operator has no semantics in the table; `operator` is its name, such as "aten.add".

    `on` says of which arguments, if it has semantics for others.
    """

    def __init__(self, operator: str, on: str = "") -> None:
        self.operator = operator
        if on:
            super().__init__(f"{operator} of {on} has no semantics for exact numbers")
            return
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


class InFlightError(ExactError):
    """A program uses a tensor of an asynchronous call that it has not waited for."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} before the program waited for the call; wait first, or use a copy"
        )


def changed_in_flight(call: str) -> InFlightError:
    """The error of a program that changes what it gave to a call, such as a send."""
    return InFlightError(f"the tensor that {call} was given was changed")
