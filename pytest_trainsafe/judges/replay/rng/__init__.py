"""The replay judge: checks how a parallel program draws random numbers.

`ledger_rules` applies every rule. The rules are pure functions of traces: `parallel` compares the
dropout of ranks; `recomputation`, `evaluation` and `initialisation` check the draws in these
phases; `workers` checks the workers of data loaders, and threads; `expected` checks what a test
expects. `overwritten` says which initial values `ctx.initialize` hides. `draws` arranges the draws
of a trace, and `regions` determines the axes that shard a masked tensor. `judge` is the registered
judge, `text` has its sentences, and `instrument` keeps the ledger in the ranks.
"""
