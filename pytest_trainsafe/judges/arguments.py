"""Checks of the arguments of assertions, before any Run is requested.  Called by `assertions`.

Test modules import it at collection, so heavy modules are imported inside the functions.
"""

from __future__ import annotations

import os

from pytest_trainsafe.core.usage import shown as described
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.judges.loosen import Loosen
from pytest_trainsafe.sweep.expectation import Expectation


def require_fixture(traces: object, role: str) -> None:
    """Raises ArgumentTypeError unless `traces` is the fixture of `role`, candidate or reference."""
    call = "assert_trainsafe(candidate_trace, reference_trace)"
    if not hasattr(traces, "at"):
        if hasattr(traces, "manifest") or isinstance(traces, (str, os.PathLike)):
            instead = "To compare recorded traces or their directories, call assert_equivalent"
        else:
            instead = f"Call {call}"
        raise ArgumentTypeError(
            f"assert_trainsafe was given {described(traces)} as its {role}; pass the fixtures "
            f"candidate_trace and reference_trace. {instead}"
        )
    if getattr(traces, "role", role) != role:
        raise ArgumentTypeError(
            f"assert_trainsafe was given the {getattr(traces, 'role', '')} as its {role}; call "
            f"{call}"
        )


def require_alike(candidate: object, reference: object) -> None:
    """Raises ArgumentTypeError if the candidate is a trace and the reference a fixture."""
    if hasattr(reference, "prefetch") and not hasattr(candidate, "prefetch"):
        raise ArgumentTypeError(
            "assert_rng was given a recorded trace and the fixture reference_trace; instead of the "
            "fixture pass reference_trace.at(dtype), where dtype is that of the recorded trace, "
            'such as "float64"'
        )


def require_repeatable(given: object, function: str, how: str, place: str = "") -> None:
    """Raises ArgumentTypeError unless `given` is a fixture, whose Run `function` repeats.

    `how` ends the message: what the Run is repeated with; `place` says which argument it is.
    """
    if not hasattr(given, "prefetch"):
        raise ArgumentTypeError(
            f"{function} was given {described(given)}{f' {place}' if place else ''}; pass the "
            f"fixture candidate_trace or reference_trace, whose Run is repeated{how}"
        )


def require_repeats(repeats: object) -> None:
    """Raises ArgumentTypeError or ArgumentError unless `repeats` is a number of Runs."""
    if type(repeats) is not int:
        raise ArgumentTypeError(
            f"assert_deterministic was given {described(repeats)} as repeats; repeats must be "
            "the number of Runs, such as 2"
        )
    if repeats < 2:
        raise ArgumentError(
            f"assert_deterministic was given repeats={repeats}; repeats must be 2 or more, because "
            "Runs are compared with each other"
        )


def require_sizes(sizes: object) -> None:
    """Raises ArgumentError unless `sizes` says at which sizes a proof is made."""
    if sizes not in ("own", "small"):
        raise ArgumentError(
            'assert_proved_equivalent takes sizes="own", the sizes of the test, or sizes="small", '
            f"not {described(sizes)}"
        )


def require_recorded(given: object, role: str) -> None:
    """Raises ArgumentTypeError unless `given` is a recorded trace or a path."""
    from pytest_trainsafe.trace.reader import Trace

    if hasattr(given, "prefetch"):
        raise ArgumentTypeError(
            f"assert_equivalent was given a fixture as its {role}; pass a recorded trace, such "
            'as candidate_trace.at("float64"), or the path of its directory. To compare the '
            "fixtures, call assert_trainsafe(candidate_trace, reference_trace)"
        )
    if not isinstance(given, (Trace, str, os.PathLike)):
        raise ArgumentTypeError(
            f"assert_equivalent was given {described(given)} as its {role}; pass a recorded "
            'trace, such as candidate_trace.at("float64"), or the path of its directory'
        )


def require_options(function: str, loosen: object, accept: object) -> None:
    """Raises ArgumentTypeError unless `loosen` is a list of Loosen and `accept` of check names."""
    if not isinstance(loosen, (list, tuple)) or not all(isinstance(e, Loosen) for e in loosen):
        raise ArgumentTypeError(
            f"{function} was given {described(loosen)} as loosen; loosen must be a list of Loosen, "
            'as in loosen=[Loosen("*.router.weight", factor=3, reason="ties break differently")]'
        )
    # Any collection of names is accepted, except a string, which is a collection of letters.
    names = accept if isinstance(accept, (list, tuple, set, frozenset)) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(
            f"{function} was given {described(accept)} as accept; accept must be a list of names "
            'of checks, as in accept=["moved"]'
        )


def require_expectations(function: str, expect: object) -> None:
    """Raises ArgumentTypeError unless `expect` is a list of Expectations."""
    if not isinstance(expect, (list, tuple)) or not all(isinstance(e, Expectation) for e in expect):
        raise ArgumentTypeError(
            f"{function} was given {described(expect)} as expect; expect must be a list of results "
            'of expect_rng, as in expect=[expect_rng("noise", same="tp")]'
        )
