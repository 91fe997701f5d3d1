"""Judges the real training step on numbers without rounding, so that equal means equal.

It is a rung of the precision ladder, `exact`, above float64: the numbers and the semantics of
operators are those of `arithmetic`.

instrument   what happens in the ranks
events       the decisions of a rank, and the operators that it met
numbers      what alignment and judging ask of exact numbers
judge        the registered judge
proof        asks for the Runs, and turns their comparison into proved, refuted or not covered
certificate  the file that says what was proved; certify makes its content from Runs
rerun        runs a certificate again, for `python -m pytest_trainsafe certificate` (command)
shapes       small sizes in place of a test's own
types        how the ranks hold each tensor, as observed
text         the sentences of reports
"""

#: The judge's name, which its findings carry.
JUDGE = "exact"

#: The rung that it judges.
RUNG = "exact"

#: The checks that can be inconclusive, and what each then means.
CHECKS = {
    "exact:semantics": "the program calls an operator without semantics on exact numbers",
    "exact:unconfirmed": "exact numbers differ, and float64 agrees up to rounding",
    "exact:error": "the bound on the probability of a false equality is too large",
}
