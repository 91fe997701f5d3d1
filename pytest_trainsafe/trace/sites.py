"""Notes in a trace that name lines of the program: where it reduces gradients, steps, and so on.

Written by the recorder, read by `localize`.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from pytest_trainsafe.core.untrusted import MALFORMED

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

#: A name, or "file:line".
_Text = Annotated[str, msgspec.Meta(max_length=4096)]

_LINE = re.compile(r"[^\x00-\x1f]+:\d{1,9}", re.ASCII)


class Reduction(msgspec.Struct, frozen=True, omit_defaults=True):
    """A collective such as "all_reduce(SUM)", the axes of its group, and its line.

    `caller` is the nearest line of another file on the call stack, "" for none: frameworks call
    their collectives in functions of their own.  `numel` counts the input elements; it is None
    for several input tensors.
    """

    call: _Text
    axes: tuple[_Text, ...]
    site: _Text
    caller: _Text
    numel: Annotated[int, msgspec.Meta(ge=0, le=2**48)] | None = None

    def __str__(self) -> str:
        of = " of one number" if self.numel == 1 else ""
        return f"{self.call}{of} over {' and '.join(self.axes)}"


class Site(msgspec.Struct, frozen=True, omit_defaults=True):
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


def fault_of_sites(key: str, value: str) -> str | None:
    """What is wrong with a note of lines; None if it is valid, or has another key."""
    types = {"reduction": Reduction, "norm_reduction": Reduction, "site": Site, "evaluated": Site}
    if key not in types:
        return None
    try:
        found = msgspec.json.decode(value, type=types[key])
    except MALFORMED as error:
        return f"the note {key!r} is malformed: {error}"
    lines = (found.site, found.caller) if isinstance(found, Reduction) else (found.at, found.user)
    if any(line and not _LINE.fullmatch(line) for line in lines):
        return f"the note {key!r} names no line: {value[:80]!r}"
    return None
