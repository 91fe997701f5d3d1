"""What the parent asks a rank to run and record.  Crosses to the ranks as data."""

from __future__ import annotations

from typing import Literal

import msgspec

from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.core.tensor_id import TensorId

#: The noise of low-precision dtypes is larger than this.
LOW_PRECISION = 1e-5

#: Added to the seed for each further sample of noise: seeds that users choose are small.
SAMPLE_STRIDE = 2**40


class Rewrite(msgspec.Struct, frozen=True, array_like=True):
    """What to rewrite one tensor with: a normal distribution on the logical `shape`.

    Values are kept between `low` and `high`, where these are given: those of a softmax stay
    positive.
    """

    shape: tuple[int, ...]
    mean: float
    std: float
    low: float | None = None
    high: float | None = None


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One Run: a program at a Point in one dtype, and what to record of it.

    `program` is a task's target ("package.module:function") and `file` where it is defined, for
    modules that cannot be imported by name; where `script` is set, `program` is only a name and
    the script runs as `__main__` with `script_args`.  `perturbation` is the relative size of the
    noise injected into every leaf module's output and gradient (0 for none), and `sample` says
    which noise that is; only references are perturbed.  `watch_casts` notes casts out of float64
    and to FP8.  `modules` are `fnmatch` patterns; a module that matches none leaves no
    activations.  `record` says what is kept of a tensor's values: all ("full") or, unless `keep`
    names it or it is small, a sketch.
    `rewrite` names the activations and gradients to rewrite (`inject/rewrite.py`).  `replay` is the
    trace whose decisions are used in the place of this Run's own, "" for none.  Where `eager`
    is set, torch.compile compiles nothing: references are trusted as Python runs them.
    `adapters` are the import paths of the framework adapters that the recorder asks.  `rng` says
    whether the RNG ledger is kept.
    """

    program: str
    file: str = ""
    script: str = ""
    script_args: tuple[str, ...] = ()
    arguments: dict[str, object] = {}
    point: dict[str, AxisValue]
    dtype: str
    device: str
    seed: int
    trace: str
    kinds: tuple[str, ...] = ()
    modules: tuple[str, ...] = ("*",)
    perturbation: float = 0.0
    sample: int = 0
    watch_casts: bool = False
    record: Literal["full", "sketch"] = "full"
    keep: tuple[TensorId, ...] = ()
    rewrite: dict[str, Rewrite] = {}
    replay: str = ""
    eager: bool = False
    adapters: tuple[str, ...] = ()
    rng: bool = True

    @property
    def at(self) -> Point:
        return Point.of(self.point)

    @property
    def noisy_operations(self) -> bool:
        """Whether the noise is on every operation, not on modules' outputs: in every other sample.

        Not in low precision: noise on a value that is rounded anyway is a whole step, and many
        operations together make more of it than rounding does.  A Run that rewrites what flows
        between modules takes noise there.
        """
        return bool(self.sample % 2 and self.perturbation < LOW_PRECISION and not self.rewrite)

    @property
    def noise_seed(self) -> int:
        """The seed of the noise: another for every sample."""
        return self.seed + self.sample * SAMPLE_STRIDE

    def records(self, kind: str) -> bool:
        """Whether tensors of this kind are recorded; an empty selection records all."""
        return not self.kinds or kind in self.kinds


def encode_rewrite(rewrite: dict[str, Rewrite]) -> str:
    """As text, for the key of a Run."""
    return msgspec.json.encode(rewrite).decode()


def decode_rewrite(text: str) -> dict[str, Rewrite]:
    """What `encode_rewrite` made a text of; nothing of an empty text."""
    return msgspec.json.decode(text, type=dict[str, Rewrite]) if text else {}
