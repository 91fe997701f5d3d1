"""Lightning Thunder 725 (TrainCheck's B7): autocast applies to some operators only.

https://github.com/Lightning-AI/lightning-thunder/issues/725: since pull request 705 the tracer
applies autocast to functions of its torch namespace alone; a model that calls the primitive
`prims.linear` runs in float32 inside an autocast region.

`Tracer` stands for that tracer.  It runs operators with torch's own autocast off, as traced
programs do, and casts the operands itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.training.outcome import Outcome


class Tracer:
    """Runs operators by name, "torch.linear" or "prims.linear"."""

    def linear(self, symbol: str, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the output of a linear layer.

        It is computed in autocast's dtype if autocast is on and applies to the operator `symbol`.
        """
        if torch.is_autocast_enabled("cpu") and self.casts(symbol):
            dtype = torch.get_autocast_dtype("cpu")
            inputs, weight = inputs.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        with torch.autocast("cpu", enabled=False):
            return F.linear(inputs.to(weight.dtype), weight, bias)

    def casts(self, symbol: str) -> bool:
        """Return whether autocast applies to the operator `symbol`."""
        return True


class TorchSymbolsOnly(Tracer):
    """A tracer with the error: autocast does not apply to operators outside of "torch."."""

    def casts(self, symbol: str) -> bool:
        """Return whether the operator's name begins with "torch."."""
        return symbol.startswith("torch.")


class TracedLinear(nn.Linear):
    """A linear layer that calls the tracer's operator "prims.linear"."""

    def __init__(self, tracer: Tracer, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.tracer = tracer

    def forward(self, input: Tensor) -> Tensor:
        """The layer's output."""
        return self.tracer.linear("prims.linear", input, self.weight, self.bias)


def train(*, faulty: bool, seed: int = 0, steps: int = 6) -> Outcome:
    """Train a classifier under bfloat16 autocast.

    In the Outcome, `facts["dtypes"]` has the dtype of the logits in every step.
    """
    torch.manual_seed(seed)
    tracer = TorchSymbolsOnly() if faulty else Tracer()
    model = nn.Sequential(TracedLinear(tracer, 16, 32), nn.ReLU(), TracedLinear(tracer, 32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, dtypes = [], []
    for _ in range(steps):
        labels = torch.randint(4, (32,))
        inputs = torch.randn(32, 16)
        inputs[torch.arange(32), labels] += 3.0
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(inputs)
            loss = F.cross_entropy(scores, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
        dtypes.append(str(scores.dtype).removeprefix("torch."))
    return Outcome(losses, {"dtypes": dtypes})
