"""Draws random numbers in the program's default dtype, and casts them to the dtype of the Run.

A generator yields other numbers for a float64 tensor than for a float32 one, and advances by
another amount.  So a program that draws its batch would train on other data in the float64 rung,
and the distance between the two rungs would not measure rounding.  Here a random operator that
fills a tensor of the Run's dtype (or of float64) draws in the program's default dtype, and the
numbers are cast.  Whether the program asks for a dtype or not, it then draws the same numbers at
every rung, up to the cast.  `record/program_dtype/random_operators.py` intercepts the operators.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from pytest_trainsafe.compat.dispatch_keys import without_mode_keys
from pytest_trainsafe.compat.dispatch_modes import without_modes
from pytest_trainsafe.compat.operators import schema_of
from pytest_trainsafe.core.rungs.rung import Enter
from pytest_trainsafe.record.program_dtype.default import ProgramDefault

#: Calls a random operator: the dispatch keys, and its arguments.
Call = Callable[..., Any]

#: Operators whose results carry values of their arguments, which a cast would round.  They draw a
#: mask, and the mask does not depend on the dtype.
_CARRY_VALUES = frozenset(
    {
        *("_cudnn_attention_forward", "_cudnn_init_dropout_state", "_cudnn_rnn", "_lstm_mps"),
        *("_efficient_attention_forward", "_fill_mem_eff_dropout_mask_", "_fused_dropout"),
        *("_flash_attention_forward", "_scaled_dot_product_attention_math_for_mps"),
        *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_efficient_attention"),
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_fused_attention_overrideable",
        *("_triton_scaled_dot_attention", "miopen_rnn", "native_dropout", "rrelu_with_noise"),
        *("rrelu_with_noise_", "rrelu_with_noise_functional"),
    }
)

#: Operators whose tensors are what they draw with, such as probabilities, and not only a shape.
_OF_VALUES = frozenset(
    {"bernoulli", "binomial", "multinomial", "poisson", "_sample_dirichlet", "_standard_gamma"}
)

#: Operators without a tensor among their arguments that return floating-point numbers by default.
_REAL = frozenset({"rand", "randn", "normal"})


class Draws:
    """Draws in the dtype of a ProgramDefault.

    `enter` makes numbers of the rung of what was drawn, where a rung encloses the program; the
    operators that draw are then no operators of the program.
    """

    def __init__(self, default: ProgramDefault) -> None:
        self._default = default
        self.enter: Enter | None = None

    def through(self, operator: Any, call: Call) -> Call:
        """A function with the signature of `call` that draws in the program's default dtype.

        `operator` is the random operator that `call` runs.  Returns `call` if its numbers do not
        depend on the dtype of its arguments.
        """
        schema = schema_of(operator)
        base = schema.name.removeprefix("aten::")
        if base in _CARRY_VALUES:
            return call
        names = [argument.name for argument in schema.arguments]
        written = {
            argument.name
            for argument in schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        }
        # Means and deviations that are tensors are values; only the normal numbers are drawn.
        shifted = base == "normal" and {"mean", "std"} & {
            argument.name for argument in schema.arguments if str(argument.type) == "Tensor"
        }

        def drawing(keys: Any, *args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            wanted = self._wanted(base, given, written)
            if wanted is None:
                return call(keys, *args, **kwargs)
            if shifted:
                return self._shifted(given, wanted)
            if self.enter is not None and _takes_values(base, given):
                return call(keys, *args, **kwargs)  # the rung decides by its numbers
            below = keys if self.enter is None else without_mode_keys(keys)
            return self._cast(lambda new: call(below, **new), given, written, wanted)

        return drawing

    def _wanted(self, base: str, given: dict[str, Any], written: set[str]) -> torch.dtype | None:
        """The dtype to which numbers are cast after they are drawn; None to draw as asked."""
        own, asked = self._default.dtype, given.get("dtype")
        tensors = {name: each for name, each in given.items() if isinstance(each, torch.Tensor)}
        if asked is None:
            real = [each.dtype for each in tensors.values() if each.is_floating_point()]
            if not tensors and base in _REAL:
                real = [torch.get_default_dtype()]
            asked = next(iter(real), None)
        if asked is own or asked not in (self._default.run, torch.float64):
            return None
        if base == "bernoulli_" and isinstance(given.get("p"), float):
            device = next(iter(tensors.values())).device.type
            return None if device == "cpu" else asked  # on CPUs it draws alike in every dtype
        if not written and any(each.requires_grad for each in tensors.values()):
            return None  # a cast would round what the gradient flows through
        return asked

    def _cast(
        self,
        call: Callable[[dict[str, Any]], Any],
        given: dict[str, Any],
        written: set[str],
        wanted: torch.dtype,
    ) -> Any:
        own = self._default.dtype
        with without_modes():  # they watch the casts of the program
            new = {name: self._like(each, name in written) for name, each in given.items()}
        like = any(isinstance(each, torch.Tensor) for each in given.values())
        if "dtype" in given or not like:
            new["dtype"] = own
        with without_modes() if self.enter is not None else nullcontext():
            made = call(new)
        with without_modes():  # they watch the casts of the program
            for name in written:
                if new[name] is not given[name]:
                    given[name].copy_(self._entered(new[name]))
                return given[name]
            cast = isinstance(made, torch.Tensor) and made.dtype is own
            return self._entered(made.to(wanted)) if cast else made

    def _entered(self, drawn: torch.Tensor) -> torch.Tensor:
        return drawn if self.enter is None else self.enter(drawn)

    def _like(self, value: Any, written: bool) -> Any:
        """A tensor in the program's default dtype instead of a wider or narrower float."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if value.dtype not in (self._default.run, torch.float64):
            return value
        own = self._default.dtype
        return torch.empty_like(value, dtype=own) if written else value.detach().to(own)

    def _shifted(self, given: dict[str, Any], wanted: torch.dtype) -> torch.Tensor:
        mean, std, out = given.get("mean", 0.0), given.get("std", 1.0), given.get("out")
        shapes = [each.shape for each in (mean, std) if isinstance(each, torch.Tensor)]
        device = next(each for each in (mean, std) if isinstance(each, torch.Tensor)).device
        shape = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
        with without_modes():  # they watch the casts of the program
            drawn = torch.empty(shape, dtype=self._default.dtype, device=device)
            drawn.normal_(generator=given.get("generator"))
            drawn = self._entered(drawn.to(wanted))
        with without_modes() if self.enter is None else nullcontext():
            numbers: torch.Tensor = drawn * std + mean
            return numbers if out is None else out.resize_(shape).copy_(numbers)


def _takes_values(base: str, given: dict[str, Any]) -> bool:
    """Whether an operator draws with the values of a tensor."""
    if isinstance(given.get("p"), float):
        return False
    return base in _OF_VALUES or isinstance(given.get("p"), torch.Tensor)
