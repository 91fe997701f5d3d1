"""Judges whether training repeats: its random numbers, its results, and what follows a restart.

checks       the names of its checks that can be inconclusive
rng          the ledger of random draws, and the rules that it must obey
determinism  the same Run twice gives the same bits
schedules    the same results whenever asynchronous collectives complete
resume       a Run that continues from a checkpoint goes on as if never interrupted
checkpoints  checkpoints with all random states, from which any step can be replayed
per_example  random numbers that belong to an example, wherever it is trained
"""
