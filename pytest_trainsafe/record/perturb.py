"""Noise of the size of rounding, injected into a reference to see how it responds.

TTrace (section 4.5) perturbs the model's input by a relative machine epsilon and takes the
response as the error that rounding may cause.  An input perturbation exercises no rounding of
the backward pass near the loss, so the noise here enters at every leaf module, forward and
backward: each output and each gradient is multiplied by 1 + eps * u, u uniform in [-1, 1].
"""

from __future__ import annotations

import torch
import xxhash

#: Spacing of the numbers next to 1 in each working dtype: the relative size of the noise.
EPSILON = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "bfloat16": 2.0**-7,
    "float16": 2.0**-10,
}


class Noise:
    """Multiplies floating tensors by 1 + eps * u, the same u for the same key in every run."""

    def __init__(self, epsilon: float, seed: int) -> None:
        self.epsilon = epsilon
        self.seed = seed

    def __call__(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        """The perturbed values, rounded to the tensor's dtype.  Integers pass unchanged."""
        if not tensor.is_floating_point():
            return tensor
        seed = xxhash.xxh3_64_intdigest(key.encode(), self.seed) >> 1
        generator = torch.Generator().manual_seed(seed)
        noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * 2 - 1
        factor = 1 + self.epsilon * noise.to(tensor.device)
        return (tensor.detach().to(torch.float64) * factor).to(tensor.dtype)
