"""Facts of a Run that are more than one word, each an event of its own.

Written by the recorder.  A fact of one word is a `NoteEvent` of `schema`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from pytest_trainsafe.core.layout import Count
from pytest_trainsafe.core.tensor_id import Step

#: A name, a path, or a file with its line.
Text = Annotated[str, msgspec.Meta(max_length=4096)]

CastDtype = Literal["float64", "float32", "float16", "bfloat16", "float8"]


class Annotations(msgspec.Struct, frozen=True, tag="annotations", omit_defaults=True):
    """The annotations that a rank resolved layouts with.

    `file` is the absolute path of their file, "" where a program gives them as text.  `cp_order`
    is the order they declare for context parallelism, and `model` the model they are for.
    """

    file: Text = ""
    cp_order: Text = ""
    model: Text = ""


class Cast(msgspec.Struct, frozen=True, tag="cast"):
    """The narrowest cast of the program on a rank: to FP8 ("float8"), or out of float64.

    `at` is the "file:line" of the cast.
    """

    dtype: CastDtype
    at: Text

    def __str__(self) -> str:
        return f"{self.dtype} {self.at}"


class Altered(msgspec.Struct, frozen=True, tag="altered"):
    """A module runs with other parameters than those its step began with."""

    step: Step
    microbatch: Count
    module: Text


class Caller(msgspec.Struct, frozen=True, tag="caller"):
    """The module `by` runs the module `module`."""

    module: Text
    by: Text
