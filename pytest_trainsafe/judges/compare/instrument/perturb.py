"""Noise as small as rounding errors, injected into a reference to measure how much it changes.

TTrace (section 4.5) perturbs the model's input by a relative machine epsilon and takes the
response as the error that rounding may cause.  An input perturbation does not include rounding in
the backward pass near the loss, so the noise here enters at every leaf module, forward and
backward: each output and each gradient is multiplied by 1 + eps * u, u uniform in [-1, 1].
"""

from __future__ import annotations

from typing import TypeVar

import torch
import xxhash

from pytest_trainsafe.compat.autograd import uses_own_result
from pytest_trainsafe.compat.dispatch_modes import without_modes
from pytest_trainsafe.record.hooks.outputs import has_values, replace_tensors, tensors_in
from pytest_trainsafe.record.program_dtype.random_operators import not_intercepted
from pytest_trainsafe.record.tensors import on_gradient, tensor_hash

T = TypeVar("T")


#: Maximum number of graph nodes to search behind a module's outputs; leaf modules have few.
MAX_NODES = 1000


class Noise:
    """Multiplies floating-point tensors by 1 + eps * u.

    Like rounding, u is a function of the values: the same tensor with the same key (a name)
    gets the same noise in every run, and when it is recomputed.
    """

    def __init__(self, epsilon: float, seed: int) -> None:
        self.epsilon = epsilon
        self.seed = seed

    def __call__(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the perturbed values, rounded to the tensor's dtype.

        Zeros, infinities and NaN are unchanged, and so are tensors whose dtype is 8-bit or not a
        real floating-point type.
        """
        if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
            return tensor  # an 8-bit float has no arithmetic
        # The program's modes need not see how noise is made; a mode costs more than an operator.
        with without_modes():
            return self._noisy(key, tensor.detach())

    def _noisy(self, key: str, values: torch.Tensor) -> torch.Tensor:
        seed = xxhash.xxh3_64_intdigest(f"{key} {tensor_hash(values)}".encode(), self.seed) >> 1
        generator = torch.Generator().manual_seed(seed)
        with not_intercepted():
            drawn = torch.rand(values.shape, generator=generator, dtype=torch.float64)
        noise = drawn * 2 - 1
        factor = 1 + self.epsilon * noise.to(values.device)
        noisy = (values.to(torch.float64) * factor).to(values.dtype)
        return torch.where(noisy.isfinite(), noisy, values)

    def gradient(self, key: str, gradient: torch.Tensor) -> torch.Tensor:
        """Returns a gradient with noise; one that is differentiated again keeps its graph."""
        if gradient.requires_grad and gradient.is_floating_point():
            return self._added(key, gradient)
        return self(key, gradient)

    def _added(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        """Adds the difference that noise makes, so that the tensor's graph is kept."""
        with without_modes():
            difference = self._noisy(key, tensor.detach()) - tensor.detach()
            difference = torch.where(difference.isfinite(), difference, 0)  # inf - inf is NaN
        return tensor + difference

    def output(self, name: str, value: T, given: object = ()) -> T:
        """Returns a module's output with noise on every tensor and on every tensor's gradient.

        `name` is the module's name, `value` its output, and `given` its inputs.  Usually a tensor
        is replaced by a noisy copy.  There are four exceptions.  An input that the module returns
        next to other outputs is not perturbed, because the program may use the input or the
        output, and gradients must reach both.  An input that it returns alone, as `nn.Identity`
        does, is perturbed in place for the same reason: in a residual block, the gradient that
        reaches a copy is that of the shortcut alone.  An output from which another output is
        computed is perturbed in place too.  For example, a router returns logits, and weights
        computed from the logits.  The gradient of the weights reaches the logits, but would not
        reach a copy.  So is an output that its own backward uses, as that of a tanh: if the
        backward is differentiated again, a gradient reaches the output, but would not reach a copy.
        (A checkpoint makes such an output again for its backward, which then uses no noise.)
        """
        behind = _behind(value, given)
        inputs = {id(tensor) for _, tensor in tensors_in(given)}
        returned = [tensor for _, tensor in tensors_in(value)]
        if all(id(tensor) in inputs for tensor in returned):
            behind |= {id(tensor) for tensor in returned if tensor.grad_fn is not None}
            inputs.clear()

        def perturbed(key_path: str, tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in inputs:
                return tensor
            if not (has_values(tensor) and tensor.is_floating_point()):
                return tensor
            if tensor.layout != torch.strided or tensor.dtype.itemsize == 1:
                return tensor
            key = f"{name}/{key_path}"
            if id(tensor) in behind or uses_own_result(tensor.grad_fn):
                if not any(stride == 0 for stride in tensor.stride()):  # else elements share memory
                    # `.data` keeps the version counter, so that autograd accepts saved values.
                    tensor.data.copy_(self(key, tensor))
                on_gradient(tensor, lambda grad: self.gradient(f"{key}/grad", grad))
                return tensor
            noisy = self._added(key, tensor)
            if noisy.requires_grad:
                on_gradient(noisy, lambda grad: self.gradient(f"{key}/grad", grad))
            return noisy

        result: T = replace_tensors(value, perturbed)
        return result


def _behind(value: object, given: object) -> set[int]:
    """The `id()` of each output tensor of a module that another output tensor is computed from.

    `value` is the module's output and `given` are its inputs.  The search follows the autograd
    graph from the output back to the inputs, and visits at most MAX_NODES nodes.
    """
    outputs = {t.grad_fn: id(t) for _, t in tensors_in(value) if t.grad_fn is not None}
    if len(outputs) < 2:
        return set()
    seen = {t.grad_fn for _, t in tensors_in(given)}
    found: set[int] = set()
    todo = [before for node in outputs for before, _ in node.next_functions]
    while todo and len(seen) < MAX_NODES:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in outputs:
            found.add(outputs[node])
        todo += [before for before, _ in node.next_functions]
    return found
