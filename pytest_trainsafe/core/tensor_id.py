"""The name of a logical tensor, the same for every layout."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from pytest_trainsafe.core.layout import Count

Kind = Literal[
    "input",  # what the program gives its model
    "activation",
    "activation_grad",
    "decision",  # the indices that a module chose ("output"), and the "scores" it chose by
    "buffer",
    "param",
    "param_grad",
    "unclipped_grad",  # the main gradient, before the program clipped it
    "main_grad",
    "master_param",
    "optimizer_state",
    "loss",
    "grad_norm",
    "update",  # derived, never recorded: the change of a parameter in a step
]

#: What each kind of tensor is, in a few words for readers of reports.
MEANINGS: dict[Kind, str] = {
    "input": "what the model is given",
    "activation": "the output of a module",
    "activation_grad": "the gradient that arrives at the output of a module in the backward",
    "decision": "indices that a module chose, such as the experts of a token",
    "buffer": "a buffer of a module",
    "param": "a parameter",
    "param_grad": "the gradient of a parameter from the backward of one micro-batch",
    "unclipped_grad": "the gradient of a parameter after all reductions, before clipping",
    "main_grad": "the gradient of a parameter that the optimizer receives, after all reductions",
    "master_param": "the optimizer's own copy of a parameter, in a wider dtype",
    "optimizer_state": "what the optimizer keeps of a parameter, such as moments",
    "loss": "the loss that the program reports",
    "grad_norm": "the norm of all gradients, by which they are clipped",
    "update": "by how much a step changed a parameter",
}

#: The step number under which the values before the first step are recorded.
INITIAL = -1

#: The name of the norm by which a step's gradients are clipped, a tensor of kind `grad_norm`.
CLIP_NORM = "clip_norm"

#: A micro-batch's number, which the program chooses.
Number = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]

#: A step's number, or INITIAL; and a position in a file, or -1 for none.
Step = Annotated[int, msgspec.Meta(ge=INITIAL, le=2**48)]
FileIndex = Annotated[int, msgspec.Meta(ge=-1, le=2**48)]


def gradient_place(place: str) -> str:
    """The annotation key of a gradient: "output_grad.0" for that of "output.0"."""
    root, dot, rest = place.partition(".")
    return f"{root}_grad{dot}{rest}"


def is_gradient_place(place: str) -> bool:
    """Whether a key of an annotation is that of a gradient, such as "output_grad.0"."""
    return place.split(".", 1)[0].endswith("_grad")


class TensorId(msgspec.Struct, frozen=True, order=True, gc=False):
    """`step / microbatch / kind / module / name`: a logical tensor's name, the same for any layout.

    `microbatch` is None for tensors of the whole step (main gradients, parameters).
    `module` is the module's path from the root, "" for the root itself.
    `name` is the parameter, buffer or state name ("weight", "weight.exp_avg"), or the position in
    the module's output ("output", "output.0", "output.logits") or in the model's arguments
    ("input.0", "input.tokens").  For the kind `grad_norm` it is "grad_norm" (the norm that the
    program reports) or "clip_norm" (the norm by which gradients are clipped).  A buffer with a
    micro-batch has the value that it had after the forward of that micro-batch.
    `call` is the number of the module's call within one micro-batch, counted from 0.
    """

    step: Step
    microbatch: Number | None
    kind: Kind
    module: str
    name: str
    call: Count = 0

    @property
    def path(self) -> str:
        """Module and name joined: `layers.0.mlp.fc1.weight`."""
        return f"{self.module}.{self.name}" if self.module else self.name

    @property
    def shown(self) -> str:
        """The path as reports show it: `output (root module)`, which is not that of a layer."""
        of_root = not self.module and self.kind in ("activation", "activation_grad")
        return f"{self.path}{' (root module)' * of_root}"

    def __str__(self) -> str:
        when = f"step {self.step}" if self.step != INITIAL else "before the first step"
        if self.microbatch is not None:
            when += f" · micro-batch {self.microbatch}"
        if self.call:
            when += f" · call {self.call}"
        return f"{self.shown} · {self.kind} · {when}"
