"""Lines of the program: where it reduces gradients, steps its optimizer, and so on.

Written by the recorder, read by `localize`.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

What = Literal[
    "model",
    "loss",
    "backward",
    "norm",
    "write",
    "alter",
    "step",
    "optimizer",
    "wrapper",
    "mode",
]

Of = Literal["gradients", "norm"]

#: A name, or "file:line".
_Text = Annotated[str, msgspec.Meta(max_length=4096)]

_LINE = re.compile(r"[^\x00-\x1f]+:\d{1,9}", re.ASCII)


class Reduction(msgspec.Struct, frozen=True, tag="reduction", omit_defaults=True):
    """A collective that may reduce gradients or their norm: "all_reduce(SUM)", its axes, its line.

    `caller` is the nearest line of another file on the call stack, "" for none: frameworks call
    their collectives in functions of their own.  `numel` counts the input elements; it is None
    for several input tensors.
    """

    call: _Text
    axes: tuple[_Text, ...]
    site: _Text
    caller: _Text
    numel: Annotated[int, msgspec.Meta(ge=0, le=2**48)] | None = None
    of: Of = "gradients"

    def fault(self) -> str:
        """What is wrong with this event; "" for a sound one."""
        return _fault_of_lines(self.site, self.caller)

    def __str__(self) -> str:
        of = " of one number" if self.numel == 1 else ""
        return f"{self.call}{of} over {' and '.join(self.axes)}"


class Site(msgspec.Struct, frozen=True, tag="site", omit_defaults=True):
    """A line of the program, by what it does.

    `model` calls the model; `loss` and `norm` report (ctx.loss, ctx.grad_norm); `backward` starts
    a backward; `write` changes gradients in place after it; `step` steps the optimizer;
    `alter` changes parameters in place before a forward of the same step;
    `optimizer` constructs the optimizer, and `wrapper` a wrapper that reduces gradients;
    `mode` puts a module into evaluation mode.
    `at` is the innermost line outside of torch, "" for a `mode` whose line is not known.  `user`
    is the innermost line of the user's own code, if `at` is in an installed package.  `name` is
    the constructed class, the operation, or the module's path.
    """

    what: What
    at: _Text
    user: _Text = ""
    name: _Text = ""

    def fault(self) -> str:
        """What is wrong with this event; "" for a sound one."""
        return _fault_of_lines(self.at, self.user)


def _fault_of_lines(*lines: str) -> str:
    wrong = next((line for line in lines if line and not _LINE.fullmatch(line)), "")
    return f"{wrong[:80]!r} is not a line of a file" if wrong else ""
