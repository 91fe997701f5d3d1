"""Training programs of different kinds that save all of their state and resume from it.

Most are small programs in this folder: `single` (networks on one device), `games` (adversarial
training and a GAN) and `parallel` (torch's data parallelism).  They share the training loop in
`training`.  The others are reference models of other folders, which have no code that saves their
state; the functions in `files` save and load it.

This module does not import torch; the modules that it names do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["KINDS", "STEPS", "Kind"]

#: The number of steps of each training.  Programs with a data set reach their third epoch.
STEPS = 8

_HERE = "pytest_trainsafe.reference_models.resumable"
_MODELS = "pytest_trainsafe.reference_models"


@dataclass(frozen=True, slots=True)
class Kind:
    """One program: its import path, its Point, its arguments, and `what` it demonstrates.

    If `by_functions` is set, `files.save` and `files.load` save and load its state, because the
    program has no code for that.
    """

    name: str
    program: str
    what: str
    point: Mapping[str, object] = field(default_factory=dict)
    arguments: Mapping[str, object] = field(default_factory=dict)
    by_functions: bool = False


_SMALL: Mapping[str, object] = {"layers": 2, "hidden": 16, "heads": 2, "seq_len": 8}

KINDS = (
    Kind("MLP", f"{_HERE}.single:mlp", "dropout, Adam, gradient clipping"),
    Kind(
        "CNN with augmentation",
        f"{_HERE}.single:cnn",
        "a shuffling DataLoader; torch, NumPy and Python draw the augmentation",
    ),
    Kind("ResNet", f"{_HERE}.single:resnet", "BatchNorm, SGD with momentum, cosine schedule"),
    Kind("LSTM", f"{_HERE}.single:lstm", "two layers, dropout between them, clipping"),
    Kind("GPT", f"{_HERE}.single:gpt", "dropout in attention and MLP, AdamW, warm-up"),
    Kind(
        "GPT, accumulation and recompute",
        f"{_HERE}.single:gpt",
        "two micro-batches, layers recomputed with their dropout",
        arguments={"microbatches": 2, "recompute": True},
    ),
    Kind(
        "MoE",
        f"{_MODELS}.moe:train",
        "top-2 of 4 experts, balancing loss",
        arguments={**_SMALL, "ffn": 16},
        by_functions=True,
    ),
    Kind("adversarial training", f"{_HERE}.games:adversarial", "PGD from noise of its own stream"),
    Kind("GAN", f"{_HERE}.games:gan", "two Adam optimizers, BatchNorm"),
    Kind("DDP", f"{_HERE}.parallel:ddp", "another dropout on each rank", {"dp": 2}),
    Kind("FSDP2", f"{_HERE}.parallel:fsdp2", "sharded weights and moments, dropout", {"dp": 2}),
    Kind(
        "GPT, TP and SP",
        f"{_MODELS}.gpt:train",
        "sharded over tp, sequence parallel",
        {"tp": 2, "sp": True},
        _SMALL,
        by_functions=True,
    ),
    Kind(
        "GPT, PP",
        f"{_MODELS}.gpt:train",
        "two stages, 1F1B",
        {"pp": 2},
        _SMALL,
        by_functions=True,
    ),
    Kind(
        "GPT, CP and ZeRO-1",
        f"{_MODELS}.gpt:train",
        "sequences cut, moments sharded",
        {"cp": 2, "zero": 1},
        _SMALL,
        by_functions=True,
    ),
)
