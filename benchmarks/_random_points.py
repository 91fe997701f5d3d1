"""Draws random clean Points: any reference model, axes, options and dtype, at awkward sizes.

A Point depends only on a seed and an index, not on the machine. If a program's rules reject it,
another one is drawn, and the rejection is counted by rule.
"""

from __future__ import annotations

import importlib
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import cells

MAX_RANKS = 4

#: The dtypes of a Point, which are its lowest rung; the rungs above it are judged, too.
DTYPES = ("float64", "float32", "bfloat16", "float16")

Random = random.Random
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A random Point, with everything that its Case needs.

    `axes` are the axes of the Point that are not trivial, with its dtype. `pipeline` is the
    number of pipeline stages of the reference (1: a single device).
    """

    index: int
    program: str
    axes: Values
    arguments: Values
    pipeline: int
    seed: int

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in {**self.axes, **self.arguments}.items()]
        reference = f", reference pp={self.pipeline}" if self.pipeline > 1 else ""
        return f"{self.index}: {self.program} {' '.join(words)}{reference}, seed {self.seed}"


def draw(seed: int, index: int, rejected: Counter[str]) -> Drawn:
    """Random Point number `index` of a seed; `rejected` counts the Points rejected before it."""
    generator = Random(f"{seed} {index}")
    program = generator.choice(OFTEN)
    while True:
        axes, arguments = PROGRAMS[program](generator)
        axes["dtype"] = generator.choice(DTYPES)
        # If the program has pipelines, the reference is sometimes a pipeline of two stages.
        pipeline = generator.choice((1, 1, 1, 1, 1, 1, 1, 2)) if program in PIPELINED else 1
        drawn = Drawn(index, program, axes, arguments, pipeline, generator.randrange(1000))
        _, reason = case_of(drawn, Settings(max_world_size=MAX_RANKS))
        if reason is None:
            return drawn
        rejected[f"{program}: {rule_of(reason)}"] += 1


def case_of(drawn: Drawn, settings: Settings) -> tuple[Case, str | None]:
    """The Case of a random Point, and the reason why it is invalid, or None."""
    module = importlib.import_module(f"pytest_trainsafe.reference_models.{drawn.program}")
    words: Values = {name: [value] for name, value in drawn.axes.items()}
    if drawn.pipeline > 1:
        words["reference"] = {"pp": drawn.pipeline}
    declared = read_marker([module.train], {**words, "args": drawn.arguments})
    (cell,) = cells(declared, settings._replace(seed=drawn.seed), lambda *_: None)
    return cell.case, cell.invalid


def rule_of(reason: str) -> str:
    """The rule behind a reason: the sentence without its numbers."""
    return re.sub(r"\d+", "N", reason)


def _ranks(generator: Random, *names: str) -> Values:
    """Sizes of mesh axes, 2 to 4 ranks together; the trivial ones are left out.

    On one rank a candidate is its reference, and there is nothing to judge.
    """
    drawn = dict.fromkeys(names, 1)
    for factor in generator.choice(((2,), (2,), (3,), (4,), (2, 2), (2, 2), (2, 2))):
        drawn[generator.choice(names)] *= factor
    return {name: size for name, size in drawn.items() if size > 1}


def _training(generator: Random) -> Values:
    """The arguments that every program takes."""
    return {
        "batch_size": generator.choice((1, 1, 2, 3)),
        "microbatches": generator.choice((1, 2, 2, 3, 4, 4, 6)),
        "steps": generator.choice((1, 2, 2, 3)),
        "learning_rate": generator.choice((1e-5, 1e-4, 1e-3, 1e-3, 1e-3, 1e-2, 1e-1, 1.0)),
        "clip": generator.choice((0.0, 0.0, 0.01, 0.5, 100.0)),
    }


def _buckets(generator: Random) -> Values:
    return {
        "bucket": generator.choice((0, 0, 1, 100, 4096)),
        "overlap_grad_reduce": generator.random() < 0.25,
        "overlap_param_gather": generator.random() < 0.25,
    }


def _sizes(generator: Random) -> Values:
    return {
        "layers": generator.choice((1, 1, 2, 2, 3, 4)),
        "hidden": generator.choice((1, 2, 3, 4, 6, 8, 8, 12, 16, 20, 24, 64)),
        "seq_len": generator.choice((1, 2, 3, 4, 5, 7, 8, 8, 12, 16, 24, 32)),
        "vocabulary": generator.choice((1, 2, 3, 4, 12, 32, 64, 256, 256, 256)),
    }


def _how(generator: Random, axes: Values) -> Values:
    """Pipeline schedules, and options of context and tensor parallelism; adds to `axes`."""
    if axes.get("pp", 1) > 1:
        axes["vpp"] = generator.choice((1, 1, 2))
    recompute = generator.choice(("none", "none", "none", "selective", "full"))
    if recompute != "none":
        axes["recompute"] = recompute
    schedules = ("1f1b", "1f1b", "gpipe", "torch-1f1b", "torch-gpipe", "torch-zero-bubble")
    return {
        "schedule": generator.choice(schedules) if axes.get("pp", 1) > 1 else "1f1b",
        "cp_method": generator.choice(("all_gather", "ring")),
        "tp_overlap": generator.random() < 0.25,
        "recompute_num_layers": generator.choice((1, 1, 2, 3)),
        "fp8": generator.random() < 0.15,
        **_buckets(generator),
    }


def _shared(generator: Random, axes: Values) -> None:
    """Adds the axes that shard the sequence over tp, and the optimizer over dp and cp."""
    if axes.get("tp", 1) > 1 and generator.random() < 0.5:
        axes["sp"] = True
    if (axes.get("dp", 1) > 1 or axes.get("cp", 1) > 1) and generator.random() < 0.4:
        axes["zero"] = 1


def _gpt(generator: Random) -> tuple[Values, Values]:
    axes = _ranks(generator, "tp", "cp", "dp", "pp")
    _shared(generator, axes)
    arguments = {
        **_sizes(generator),
        "heads": generator.choice((1, 2, 2, 3, 4, 4)),
        **_training(generator),
        "tied": generator.random() < 0.4,
        **_how(generator, axes),
    }
    return axes, arguments


def _llama(generator: Random) -> tuple[Values, Values]:
    axes = _ranks(generator, "tp", "cp", "dp", "pp")
    _shared(generator, axes)
    arguments = {
        **_sizes(generator),
        "heads": generator.choice((1, 2, 2, 3, 4, 4)),
        "kv_heads": generator.choice((1, 2, 2, 3, 4)),
        "ffn": generator.choice((1, 2, 3, 4, 8, 12, 16, 96)),
        **_training(generator),
        **_how(generator, axes),
    }
    return axes, arguments


def _moe(generator: Random) -> tuple[Values, Values]:
    axes = _ranks(generator, "tp", "cp", "dp")
    _shared(generator, axes)
    if generator.random() < 0.6:
        axes["ep"] = generator.choice((2, 2, 3, 4))
    if generator.random() < 0.2:
        axes["recompute"] = "selective"
    arguments = {
        **_sizes(generator),
        "heads": generator.choice((1, 2, 2, 3, 4, 4)),
        "kv_heads": generator.choice((1, 2, 2, 3, 4)),
        "ffn": generator.choice((1, 2, 3, 4, 8, 12, 48)),
        "experts": generator.choice((1, 2, 3, 4, 4, 6)),
        "top_k": generator.choice((1, 2, 2, 3)),
        "capacity_factor": generator.choice((0.0, 0.0, 0.5, 1.0, 1.25)),
        "balance": generator.choice((0.0, 0.01, 0.01, 1.0)),
        **_training(generator),
    }
    return axes, arguments


def _deepseek(generator: Random) -> tuple[Values, Values]:
    axes = _ranks(generator, "tp", "cp", "dp", "pp")
    _shared(generator, axes)
    if generator.random() < 0.4:
        axes["ep"] = generator.choice((2, 2, 3, 4))
    how = _how(generator, axes)
    arguments = {
        **_sizes(generator),
        "heads": generator.choice((1, 2, 2, 3, 4, 4)),
        "q_rank": generator.choice((1, 2, 5, 8, 24)),
        "kv_rank": generator.choice((1, 2, 5, 8, 16)),
        "rope_dim": generator.choice((2, 2, 4, 6, 8)),
        "ffn": generator.choice((1, 2, 3, 4, 8, 12, 96)),
        "dense_layers": generator.choice((0, 0, 1, 1, 2)),
        "experts": generator.choice((1, 2, 3, 4, 4, 6)),
        "top_k": generator.choice((1, 2, 2, 3)),
        "expert_ffn": generator.choice((1, 2, 3, 4, 8, 12, 32)),
        "shared": generator.choice((1, 1, 2)),
        "bias_speed": generator.choice((0.0, 0.001, 0.001, 0.1)),
        "mtp_weight": generator.choice((0.1, 0.3, 0.3, 1.0)),
        **_training(generator),
        **{name: value for name, value in how.items() if name not in ("tied", "fp8")},
    }
    return axes, arguments


def _cnn(generator: Random) -> tuple[Values, Values]:
    axes = _ranks(generator, "dp")
    _shared(generator, axes)
    arguments = {
        "channels": generator.choice((2, 4, 6, 8)),
        "blocks": generator.choice((1, 1, 2, 3)),
        "size": generator.choice((1, 2, 3, 5, 8, 16)),
        **_training(generator),
        **_buckets(generator),
    }
    return axes, arguments


def _lstm(generator: Random) -> tuple[Values, Values]:
    axes = _ranks(generator, "dp")
    _shared(generator, axes)
    arguments = {**_sizes(generator), **_training(generator), **_buckets(generator)}
    return axes, arguments


PROGRAMS: dict[str, Callable[[Random], tuple[Values, Values]]] = {
    "gpt": _gpt,
    "llama": _llama,
    "moe": _moe,
    "deepseek": _deepseek,
    "cnn": _cnn,
    "lstm": _lstm,
}

#: The programs to draw from; those with more axes are listed, and so drawn, more often.
OFTEN = ("gpt", "gpt", "gpt", "llama", "llama", "moe", "moe", "deepseek", "deepseek", "cnn", "lstm")

#: The programs with pipeline stages, which can therefore be a pipelined reference, too.
PIPELINED = ("gpt", "llama", "deepseek")
