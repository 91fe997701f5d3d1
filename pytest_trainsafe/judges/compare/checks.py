"""The checks of the comparison that can be inconclusive, and what each then means."""

from __future__ import annotations

CHECKS = {
    "compared": "reference and candidate have no tensors in common",
    "gradients-compared": "reference and candidate have no gradients in common",
    "coverage:KIND": "most of the reference's tensors of a kind have no counterpart",
    "gradients": "every gradient of the reference is zero",
    "moved": "no parameter changed",
    "dp-inputs": "dp ranks saw the same data",
    "tp-inputs": "tp ranks saw different data",
    "in-effect": "an axis of the Point had no effect",
    "skipped-step": "the optimizer's step was omitted",
    "dropout": "dropout is on and drew no random numbers",
    "deterministic": "two Runs of the reference with the same seed differ",
    "sensitive:KIND": "rounding may change most tensors of a kind by as much as their size",
    "zeros": "most forward activations of the reference are zero everywhere",
    "measured": "no rounding was measured",
    "narrowed": "values fit a narrower dtype than the one they are stored in",
    "diverged": "a tensor slightly exceeds its allowance after an update that rounding changed",
    "sketched": "sketches differ, and no values were kept to judge the tensors by",
    "reference": "parts of a tensor of the reference do not fit together",
    "reference-finite": "the reference has NaN or infinity",
}
