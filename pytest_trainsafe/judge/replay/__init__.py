"""The replay judge: checks how a parallel program draws random numbers.

`ledger_rules` applies every rule. The rules are pure functions of traces: `parallel` compares
ranks; `recomputation`, `evaluation`, `initialisation` and `workers` (with threads) check what their
names say; `expected` checks the expectations of a test. `draws` arranges the draws of a trace, and
`regions` determines the axes that shard a masked tensor. `determinism` judges whether the same Run
gives the same results twice, and `resume` whether a Run that is resumed from a checkpoint gives the
results of an uninterrupted one.
"""
