"""The events of the RNG ledger: which random number generator advanced, by what, and when.

`judges/replay/rng/instrument/` writes them in the ranks; the rules in `judges/replay/rng/` read
them. A state is a text: a hash of the generator's block of numbers and, if the generator has one,
its position in that block ("9c1185a5c5e9fc54.312"). Generators with equal texts draw the same
numbers from there on. A third part is a hash of numbers that were drawn in advance (a generator of
normal numbers draws two at a time).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pytest_trainsafe.core.layout import Count
from pytest_trainsafe.core.tensor_id import Number, Step
from pytest_trainsafe.trace.fields import fault_of_fields

#: What a rank was doing when it drew.  "data" is what the program does between the other phases:
#: it loads and augments data.
Phase = Literal[
    "initialisation",
    "data",
    "forward",
    "recomputation",
    "backward",
    "optimizer",
    "evaluation",
    "save",
    "load",
]

#: torch's default generator on the CPU, NumPy's global one, and that of Python's `random`.
TORCH_CPU, NUMPY, PYTHON = "torch cpu", "numpy", "python random"

#: The operators whose numbers mask a tensor: dropout, in all its forms.
MASKS = frozenset(
    {
        *("bernoulli_.float", "bernoulli_.Tensor", "bernoulli.out", "bernoulli.p"),
        *("native_dropout", "_fused_dropout", "rrelu_with_noise", "rrelu_with_noise_"),
        *("_cudnn_rnn", "miopen_rnn", "_lstm_mps", "_cudnn_attention_forward"),
        *("_efficient_attention_forward", "_flash_attention_forward"),
        "_scaled_dot_product_attention_math_for_mps",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    }
)


class DrawEvent(msgspec.Struct, frozen=True, tag="draw", omit_defaults=True):
    """One generator was advanced, by one operator or by several consecutive ones of the same line.

    `generator` names the generator: "torch cpu", "torch cuda:0", "numpy", "python random"; the name
    of a generator that the program created contains a line: the one that created it (NumPy) or
    first drew from it (torch). `stream` is the name under which a framework stores the state
    ("model-parallel-rng"), "" for none. `before` is the state before the first operator and `after`
    the state after the last, and `seed` is the generator's last seed. `operator` is the function
    that drew ("bernoulli_.float", "random.shuffle"), "" if only the change of the state is known,
    and `shape` is the shape that was drawn. `count` is the number of operators. `step` is the
    current step or, between two steps, the next step. `module` is the innermost watched module that
    was running, None for none, and `training` says whether the module was in training mode. `at` is
    the innermost line outside of torch, and `user` the innermost line of the user's own code if
    `at` is in an installed package. `thread` names the program's thread if another thread than the
    one that trains drew, and `shared` names another thread that used the generator at the same
    time. `seeded` is the line of the program that gave the generator its seed, and `restored` the
    one that set its state after that; "" for none, or if it is not known.
    """

    generator: str
    phase: Phase
    before: str
    after: str
    operator: str = ""
    step: Step = 0
    microbatch: Number | None = None
    module: str | None = None
    training: bool = True
    at: str = ""
    user: str = ""
    shape: tuple[Count, ...] = ()
    count: Count = 1
    seed: str = ""
    stream: str = ""
    thread: str = ""
    shared: str = ""
    seeded: str = ""
    restored: str = ""

    @property
    def line(self) -> str:
        """The program's line that drew, "" if it is not known."""
        return self.user or self.at

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        texts = [self.generator, self.operator, self.module or "", self.stream, self.thread]
        lines = [self.at, self.user, self.seeded, self.restored]
        states = [self.before, self.after]
        if fault := fault_of_fields([*texts, *lines, self.seed, self.shared], lines, states):
            return fault
        if self.seed and not (self.seed.isascii() and self.seed.isdecimal()):
            return f"it has a malformed seed: {self.seed[:80]!r}"
        return "it counts no operators" if self.count < 1 else ""


class UnseenDraws(msgspec.Struct, frozen=True, tag="unseen_draws", omit_defaults=True):
    """A generator advanced before this event by draws that the ledger did not intercept.

    `count` is the number of 32-bit numbers that were drawn, or 0 if it is unknown: then the
    program may also have set the state.
    """

    generator: str
    phase: Phase
    before: str
    after: str
    step: Step = 0
    count: Count = 0

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        return fault_of_fields([self.generator], states=[self.before, self.after])


class WorkerDraw(msgspec.Struct, frozen=True, tag="worker_draw", omit_defaults=True):
    """A worker process of a data loader advanced a generator while it fetched one batch.

    `loader` numbers the iterators of the rank's loaders, and `at` is the line that created this
    one. `fetch` numbers the batches of the worker. `map_style` is true if the dataset is read
    by index, so that no two workers read the same example.
    """

    loader: Count
    worker: Count
    fetch: Count
    generator: str
    before: str
    after: str
    at: str = ""
    map_style: bool = True

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        return fault_of_fields([self.generator], [self.at], [self.before, self.after])


class LedgerGap(msgspec.Struct, frozen=True, tag="rng_gap", omit_defaults=True):
    """A kind of draw that this rank's ledger does not record: `what`, and the reason `why`."""

    what: str
    why: str

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        return fault_of_fields([self.what, self.why])


#: What a rank records instead of a ledger that is switched off.
SWITCHED_OFF = LedgerGap("all draws", "the RNG ledger was switched off")

RngEvent = DrawEvent | UnseenDraws | WorkerDraw | LedgerGap


def position(state: str) -> int | None:
    """The position in the generator's block of numbers, read from the text `state`.

    None if the text has no position.
    """
    parts = state.split(".")
    return int(parts[1]) if len(parts) > 1 else None
