"""The request from the parent to a rank: what to run and record.  Passed to the ranks as data."""

from __future__ import annotations

from typing import Literal

import msgspec

from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.core.tensor_id import TensorId

#: The noise of low-precision dtypes is larger than this.
LOW_PRECISION = 1e-5

#: Added to the seed for each further sample of noise; much larger than seeds that users choose.
SAMPLE_STRIDE = 2**40


class Rewrite(msgspec.Struct, frozen=True, array_like=True):
    """The values to rewrite one tensor with: a normal distribution on the logical `shape`.

    Values are clamped to `low` and `high`, if given: a softmax's output stays positive, for
    example.
    """

    shape: tuple[int, ...]
    mean: float
    std: float
    low: float | None = None
    high: float | None = None


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One Run: a program at a Point in one dtype, and what to record of it.

    `program` is a task's target ("package.module:function") and `file` the module's file, for
    modules that cannot be imported by name.  If `script` is set, `program` is only a name and
    the script runs as `__main__` with `script_args`.  `perturbation` is the relative size of the
    noise injected into every leaf module's output and gradient (0 for none), and `sample` selects
    the noise; only references are perturbed.  `watch_casts` notes casts out of float64 and to
    FP8.  `modules` are `fnmatch` patterns; the activations of modules that match none are not
    recorded.  `record` is "full" to keep all values, or "sketch" to keep a sketch of tensors
    that are neither small nor listed in `keep`.
    `rewrite` names the activations and gradients to rewrite (`inject/rewrite.py`).  `replay` is the
    trace whose decisions replace this Run's own, "" for none.  `eager` disables torch.compile:
    references are trusted as Python runs them.
    `adapters` are the import paths of the framework adapters that the recorder uses.
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

    @property
    def at(self) -> Point:
        """The Point of the Run."""
        return Point.of(self.point)

    @property
    def noisy_operations(self) -> bool:
        """Whether noise is added to every operation instead of modules' outputs.

        This is so for every other sample, except in low precision: noise on a value that is
        rounded anyway is a whole rounding step, so noise on many operations exceeds their
        rounding.  Runs that rewrite values between modules also get noise there only.
        """
        return bool(self.sample % 2 and self.perturbation < LOW_PRECISION and not self.rewrite)

    @property
    def noise_seed(self) -> int:
        """The seed of the noise, different for every sample."""
        return self.seed + self.sample * SAMPLE_STRIDE

    def records(self, kind: str) -> bool:
        """Whether tensors of this kind are recorded; an empty selection records all."""
        return not self.kinds or kind in self.kinds


def encode_rewrite(rewrite: dict[str, Rewrite]) -> str:
    """Encodes a rewrite table as text, for the key of a Run."""
    return msgspec.json.encode(rewrite).decode()


def decode_rewrite(text: str) -> dict[str, Rewrite]:
    """Decodes the text of `encode_rewrite`; an empty text gives an empty table."""
    return msgspec.json.decode(text, type=dict[str, Rewrite]) if text else {}
