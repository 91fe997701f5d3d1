"""The checks of this wing that can be inconclusive, and what each then means."""

from __future__ import annotations

CHECKS = {
    "rng:cp_different_dropout": "cp ranks mask equal values differently, perhaps on purpose",
    "rng:dp_same_dropout": "dp ranks draw the same dropout, perhaps for different data",
    "rng:expected": "an expectation matches no draws that can be compared",
    "rng:tp_different_dropout": "tp ranks mask equal values differently, perhaps on purpose",
    "rng:unseen": "dropout is active, and the ledger shows none of its draws",
    "resume:lr_schedule": "a scheduler was not restored, and no result differs because of it",
    "resume:nondeterministic": "two trainings differ before the checkpoint",
    "resume:nothing": "nothing was recorded that could show a wrong resume",
    "resume:rng": "a random stream was not restored, and no result differs because of it",
    "resume:scaler": "a gradient scaler was not restored, and no result differs because of it",
    "schedule:nothing": "the program issues no asynchronous collective",
    "schedule:recorded": "the only values that differ were recorded while they were in flight",
}
