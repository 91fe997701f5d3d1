"""Learns rules of training from healthy runs, and checks other runs for them.

run         the observed runs of a program
relation    the interface of rules; `relations` has the package's, `registry` loads them
columns     tables as relations read them; by_api: claims with the calls of their API
names       families of APIs and kinds of variables; features: what preconditions read
conditions  preconditions; evidence: counts of examples
inference   invariants from runs
packs       files of reviewed invariants
use         packs in a test suite: by name, in assertions, learned from healthy tests
check       finds violations, after a run or while it trains; watch, quote: one invariant's part
"""
