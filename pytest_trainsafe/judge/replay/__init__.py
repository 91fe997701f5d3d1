"""The replay judge: whether random numbers were drawn as a correct parallel program draws them.

`ledger_rules` asks every rule.  The rules are pure functions of traces: `parallel` compares ranks,
`recomputation`, `evaluation`, `initialisation` and `workers` (and threads) each what they are named
after, and `expected` what a test asked for.  `draws` arranges a trace's draws, `regions` says over
which axes a drawn tensor is cut.
`determinism` judges whether the same Run gives the same results twice, and `resume` whether a Run
that goes on from a checkpoint gives those of an uninterrupted one.
"""
