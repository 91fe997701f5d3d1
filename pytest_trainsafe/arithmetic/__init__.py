"""Arithmetic on exact numbers: a training step is executed without rounding, so equal means equal.

Two residues modulo primes are packed into each float64 (`packing`), and one dispatch mode gives
every operator its semantics (`mode`, `table`).  Decisions, such as comparisons, are those of a run
of the same program on real numbers, which the same mode executes on `Doubles`:

    doubles = Doubles()
    with ExactMode(doubles) as mode:
        train(mode)
    with ExactMode(Residues(seed, doubles.decisions.replay())) as mode:
        train(mode)

    packing      residues in the bits of a double, the bound of a false equality, fractions
    field        sums, products, inverses, roots and matrix products
    hashing      uninterpreted functions
    images       what is known of exp, log and squares, by value
    constants    the number that a Python float means
    numbers      what semantics are made of; residues and doubles implement it
    decisions    comparisons and choices, recorded and taken
    table        semantics by name, and their examples; semantics/ has one family a file
    variants     in-place, out and foreach variants
    origins      notices real doubles that enter unseen
    mode         the dispatch mode
    checks/      tests that follow from the table

Imports torch; no judge and no recorder.
"""

from pytest_trainsafe.arithmetic.checks import check_semantics
from pytest_trainsafe.arithmetic.decisions import Asked, Decisions, DecisionSource, Undecided
from pytest_trainsafe.arithmetic.doubles import Doubles
from pytest_trainsafe.arithmetic.errors import (
    ExactError,
    MissingSemanticsError,
    NarrowCastError,
    UndecidedError,
    UnseenNumberError,
)
from pytest_trainsafe.arithmetic.field import factor
from pytest_trainsafe.arithmetic.mode import ExactMode
from pytest_trainsafe.arithmetic.numbers import Numbers
from pytest_trainsafe.arithmetic.packing import rational
from pytest_trainsafe.arithmetic.residues import Residues
from pytest_trainsafe.arithmetic.table import (
    Call,
    Draw,
    Semantics,
    call,
    moves,
    semantics_of,
    table,
)

__all__ = [
    "Asked",
    "Call",
    "DecisionSource",
    "Decisions",
    "Doubles",
    "Draw",
    "ExactError",
    "ExactMode",
    "MissingSemanticsError",
    "NarrowCastError",
    "Numbers",
    "Residues",
    "Semantics",
    "Undecided",
    "UndecidedError",
    "UnseenNumberError",
    "call",
    "check_semantics",
    "factor",
    "moves",
    "rational",
    "semantics_of",
    "table",
]
