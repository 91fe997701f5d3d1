"""Learns rules of training from healthy runs, and checks other runs for them.

A learned rule is an invariant.  Its form, such as "an argument is constant", is a relation.

command     learns from plain scripts, and checks them: `python -m pytest_trainsafe learn`
instrument  observes API calls and changes of state in the ranks
events      the tables in which they are recorded
judge       the registered judge, which checks a test's packs
text        the report of `assert_invariants`, and the section on learned packs
run         an observed run of a program
relation    the interface of relations
relations   the relations of the package
registry    loads the relations of the package and those that a project adds
columns     prepares the tables of calls and changes for the relations
names       names families of APIs and kinds of variables
features    computes the fields that preconditions read
conditions  defines preconditions
evidence    counts examples
fields      converts an invariant to and from plain data
inference   learns invariants from runs
packs       reads and writes files of reviewed invariants
use         finds packs by name, checks them in assertions, and learns them from healthy tests
check       finds violations, after a run or while it trains, and says each in a sentence
watch       judges the examples of one invariant
wording     says in words where a value of a call is
quote       describes a call or a change in one line
"""

#: The judge's name, which its findings carry.
JUDGE = "learn"

#: Its check that can be inconclusive, and what it then means.
CHECKS = {"learn:nothing": "no invariant of the packs applies to the run"}

#: The artefact of a test from which a pack is learned: the trace of its observed Run.
OBSERVED = "_observed"

#: The artefact of a test of which rules were broken that are only reported: JSON, a list of pairs
#: of a rule and the record that breaks it.
REPORTED = "_reported"
