"""Correct training programs. Invariants are learned from them and must hold in them.

Each program is written independently, as a user would write it: none is the correct variant of a
faulty program in `silent_errors`. There are five families, each in a folder: images, language,
generative, methods (what is not one forward, one backward and one step) and distributed.
`DEEPSPEED` lists those distributed programs that need DeepSpeed.

Importing this package does not import torch; a call of `program` does.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from pytest_trainsafe.reference_models.healthy.program import Family, Healthy

__all__ = ["DEEPSPEED", "FAMILIES", "PROGRAMS", "Family", "Healthy", "find", "program"]

FAMILIES: tuple[Family, ...] = ("images", "language", "generative", "methods", "distributed")

PROGRAMS = (
    Healthy("digits", "images", ({"channels": 4, "batch_size": 8}, {"lr": 0.5})),
    Healthy("residual", "images", ({"depth": 1}, {"momentum": 0.8, "batch_size": 16})),
    Healthy("mixed_precision", "images", ({"width": 8}, {"max_norm": 0.5, "batch": 24})),
    Healthy("transfer", "images", ({"classes": 4}, {"lr": 0.03, "every": True})),
    Healthy(
        "with_trainer", "images", ({"accumulation": 1}, {"workers": 0, "clip": 0.5}), falls=False
    ),
    Healthy("segmentation", "images", ({"channels": 4}, {"batch": 6, "every": 3})),
    Healthy("siamese", "images", ({"width": 6}, {"margin": 1.5}), falls=False),
    Healthy("scaled", "images", ({"width": 6}, {"lr": 0.1, "growth": 2}), falls=False),
    Healthy("closure", "images", ({"width": 4}, {"lr": 0.3, "iterations": 2})),
    Healthy("semi_supervised", "images", ({"width": 12}, {"warm_up": 3, "weight": 0.2})),
    Healthy("adversarial", "images", ({"width": 4}, {"far": 0.02, "lr": 0.05}), falls=False),
    Healthy("freeze_out", "images", ({"width": 4}, {"every": 3, "lr": 0.03})),
    Healthy("stochastic_averaging", "images", ({"channels": 4}, {"swa_start": 2, "swa_lr": 0.05})),
    Healthy("causal", "language", ({"layers": 1}, {"dropout": 0.0, "width": 24})),
    Healthy("recurrent", "language", ({"width": 24}, {"length": 12})),
    Healthy("masked", "language", ({"accumulate": 3}, {"width": 24, "dropout": 0.0}), falls=False),
    Healthy("captions", "language", ({"batch": 7}, {"max_length": 16}), falls=False),
    Healthy("retrieval", "language", ({"copies": 2}, {"width": 8, "max_length": 12})),
    Healthy("classifier", "language", ({"accumulation": 2}, {"filters": 12, "batch": 6})),
    Healthy("translation", "language", ({"smoothing": 0.0}, {"width": 16, "batch": 12})),
    Healthy("switch", "language", ({"experts": 4}, {"clip": 0.5, "width": 12})),
    Healthy(
        "scaled_sentences",
        "language",
        ({"accumulate": 1}, {"width": 12, "clip": 0.5}),
        falls=False,
    ),
    Healthy("uneven", "language", ({"max_tokens": 30}, {"accumulate": 2, "dim": 12})),
    Healthy("curriculum", "language", ({"dropout": 0.0}, {"n_embd": 24, "eval_interval": 4})),
    Healthy("gan", "generative", ({"latent": 8}, {"channels": 6, "beta": 0.6}), falls=False),
    Healthy("spectral_gan", "generative", ({"width": 24}, {"iterations": 2}), falls=False),
    Healthy("wgan", "generative", ({"critic_steps": 2}, {"width": 16}), falls=False),
    Healthy("diffusion", "generative", ({"channels": 8}, {"times": 6, "decay": 0.8})),
    Healthy("flow", "generative", ({"width": 24}, {"lr": 5e-3, "batch": 48})),
    Healthy("vae", "generative", ({"latent": 2}, {"hidden": 16, "batch": 12})),
    Healthy("score", "generative", ({"width": 24}, {"clip": 2.0, "batch": 48})),
    Healthy("scaled_autoencoder", "generative", ({"hidden": 16}, {"noise": 0.1, "enabled": False})),
    Healthy("scaled_gan", "generative", ({"width": 12}, {"latent": 6}), falls=False),
    Healthy("weighted", "methods", ({"focal": True}, {"width": 12, "n_classes": 3})),
    Healthy("sharpness", "methods", ({"adaptive": True, "rho": 0.5}, {"norms": False})),
    Healthy("pruned", "methods", ({"by_hand": True}, {"hidden": 12, "amount": 0.4})),
    Healthy("robust", "methods", ({"perturb_steps": 1}, {"channels": 4, "beta": 1.0})),
    Healthy("mean_teacher", "methods", ({"teacher_noise": False}, {"width": 12, "decay": 0.8})),
    Healthy("surgery", "methods", ({"by_grad": True}, {"width": 12, "lr": 1e-2})),
    Healthy("thawing", "methods", ({"every": 2}, {"depth": 3, "lr": 0.03})),
    Healthy("adapters", "methods", ({"wide": True}, {"r": 4, "every": 3}), falls=False),
    Healthy("physics_fit", "methods", ({"line_search": False}, {"w": 2.0, "hidden": 12})),
    Healthy("soft_actor", "methods", ({"delay": 2}, {"hidden": 12, "polyak": 0.9}), falls=False),
    Healthy("overflow", "methods", ({"accumulate": 2}, {"init_scale": 2.0**30, "width": 12})),
    Healthy("assigned", "methods", ({"how": "reptile"}, {"how": "evolution"}), falls=False),
    Healthy("missing", "methods", ({"gaps": 0.4}, {"hidden": 16, "lr": 1e-2})),
    Healthy("resumed", "methods", ({"interrupted": 5}, {"batch": 4, "width": 12}), falls=False),
    Healthy("replicas", "distributed", ({"batch": 6}, {"lr": 0.05, "width": 16}), "dp"),
    Healthy("replicas_language", "distributed", ({"accumulate": 3}, {"width": 12}), "dp"),
    Healthy("replicas_images", "distributed", ({"channels": 4}, {"lr": 5e-3}), "dp"),
    Healthy(
        "replicas_scaled",
        "distributed",
        ({"width": 8}, {"batch": 4, "enabled": False}),
        "dp",
        falls=False,
    ),
    Healthy("averaged", "distributed", ({"messages": False}, {"width": 12}), "dp"),
    Healthy("local_rounds", "distributed", ({"momentum": 0.5}, {"every": 2, "width": 8}), "dp"),
    Healthy("tensor_parallel", "distributed", ({"layers": 1}, {"lr": 1e-2}), "tp"),
    Healthy("tensor_parallel_mixed", "distributed", ({"clip": 0.0}, {"width": 12}), "tp"),
    Healthy("pipeline", "distributed", ({"microbatches": 3}, {"width": 8}), "pp", falls=False),
    Healthy("experts", "distributed", ({"drop_tokens": False}, {"factor": 2.0}), "dp"),
    Healthy("sharded_states", "distributed", ({"width": 12}, {"weight_decay": 0.0}), "dp"),
    Healthy("sharded.classifier", "distributed", ({"width": 12}, {"lr": 0.05}), "dp"),
    Healthy("sharded.language", "distributed", ({"accumulate": 1}, {"width": 12}), "dp"),
    Healthy("sharded.images", "distributed", ({"channels": 4}, {"lr": 5e-3}), "dp"),
)

#: The programs that train with DeepSpeed, which must be installed.
DEEPSPEED = (
    Healthy("deepspeed.images", "distributed", ({"stage": 2}, {"channels": 4}), "dp"),
    Healthy(
        "deepspeed.language",
        "distributed",
        ({"narrow": True, "accumulate": 1}, {"stage": 0}),
        "dp",
    ),
    Healthy(
        "deepspeed.autoencoder", "distributed", ({"parts": 3, "stage": 1}, {"hidden": 5}), "dp"
    ),
    Healthy("deepspeed.partitioned", "distributed", ({"stage": 1}, {"width": 8}), "dp"),
    Healthy("deepspeed.loader", "distributed", ({"stage": 3, "cosine": True}, {"width": 6}), "dp"),
    Healthy(
        "deepspeed.own_backward", "distributed", ({"stage": 2}, {"parts": 1, "stage": 3}), "dp"
    ),
    Healthy("deepspeed.experts", "distributed", ({"stage": 2}, {"drop_tokens": True}), "dp"),
    Healthy("deepspeed.mixture", "distributed", ({"accumulate": 1}, {"width": 6}), "dp"),
    Healthy("deepspeed.staged", "distributed", ({"parts": 3}, {"stage": 1, "width": 8}), "pp"),
    Healthy("deepspeed.tied", "distributed", ({"parts": 2}, {"width": 6, "clip": 0.0}), "pp"),
    Healthy("deepspeed.alone", "distributed", ({"accumulate": 2}, {"stage": 0, "clip": 0.5})),
)


def find(name: str) -> Healthy:
    """The program of this name. Raises ValueError, which lists the names, if there is none."""
    every = (*PROGRAMS, *DEEPSPEED)
    for each in every:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in every)
    raise ValueError(f"there is no healthy program {name!r}; choose one of {names}")


def program(healthy: Healthy) -> Callable[..., Any]:
    """The function `train` of a program."""
    module = import_module(f"{__name__}.{healthy.family}.{healthy.name}")
    train: Callable[..., Any] = module.train
    return train
