"""Single-device loss scale, clipping and FP8 agree with the parallel ones, but not with wrong ones.

Both sides once shared the code of these three, so that an error in it was in the reference as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.parallel import fp8, scaling
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.data import gradients
from pytest_trainsafe.reference_models.parallel.data.update import Update
from pytest_trainsafe.reference_models.parallel.tensor import loss
from pytest_trainsafe.reference_models.plain.fp8 import finish_step, use_fp8
from pytest_trainsafe.reference_models.plain.update import PlainUpdate, plain_loss
from pytest_trainsafe.reference_models.training.main_gradients import own_gradient

CLIP = 0.25


class Reports:
    """A stand-in for the context, which keeps the gradient norm."""

    def before_clip(self, norm: Tensor, max_norm: float) -> None:
        """Nothing is recorded here."""

    def grad_norm(self, value: Tensor) -> None:
        self.norm = value


def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(6, 4, dtype=torch.float64)


def updated(kind: str, clip: float) -> list[Tensor]:
    """The parameters after a step, their gradients before it, and the reported norm."""
    linear, reports = model(), Reports()
    update: Any = (
        PlainUpdate(linear, 0.01) if kind == "plain" else Update(linear, Axes(), 0.01, backwards=1)
    )
    linear(torch.linspace(-1, 1, 12, dtype=torch.float64).view(2, 6)).square().sum().backward()
    update.accumulate()
    seen: list[Tensor] = []
    update.optimizer.register_step_pre_hook(
        lambda *_: seen.extend(p.grad.clone() for p in linear.parameters())  # type: ignore[union-attr]
    )
    update.step(reports, clip)
    return [*(p.detach() for p in linear.parameters()), *seen, reports.norm]


def loss_gradient(kind: str) -> float:
    """The gradient that a loss scale gives to the first of several losses."""
    losses = torch.arange(1.0, 9, dtype=torch.float64, requires_grad=True)
    total = (
        plain_loss(losses, 4) if kind == "plain" else loss.loss_to_differentiate(losses, 32, Axes())
    )
    (gradient,) = torch.autograd.grad(total, losses)
    return float(gradient[0])


def in_fp8(kind: str) -> list[Tensor]:
    """Outputs and gradients of three steps of a layer in FP8."""
    linear, found = model(), []
    (use_fp8(linear) if kind == "plain" else fp8.use_fp8(linear, Axes()))
    for step in range(3):
        for _ in range(2):
            given = torch.linspace(-1, 2 + step, 12, dtype=torch.float64).view(2, 6)
            given.requires_grad_()
            output = linear(given)
            (output * torch.linspace(0.3, 7, 8).view(2, 4)).sum().backward()
            assert given.grad is not None
            found += [output.detach(), given.grad]
        assert linear.weight.grad is not None
        found.append(linear.weight.grad.clone())
        with torch.no_grad():
            linear.weight.mul_(1.5)
        (finish_step(linear) if kind == "plain" else fp8.finish_fp8_step(linear, Axes()))
    return found


def agree(one: list[Tensor], other: list[Tensor]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.allclose(a, b, rtol=1e-12, atol=0) for a, b in pairs)


@pytest.mark.parametrize("clip", [0.0, CLIP, 1000.0])
def test_the_plain_update_equals_that_of_the_parallel_models(clip: float) -> None:
    assert agree(updated("plain", clip), updated("parallel", clip))


def test_the_plain_loss_scale_equals_that_of_the_parallel_models() -> None:
    assert loss_gradient("plain") == loss_gradient("parallel") == 1 / 32


def test_plain_fp8_training_equals_that_of_the_parallel_models() -> None:
    assert agree(in_fp8("plain"), in_fp8("parallel"))


def _clip_by_the_wrong_factor(parameters: Any, norm: Tensor, limit: float) -> None:
    for parameter in parameters:
        own_gradient(parameter).mul_((limit * (norm + 1e-6)).clamp(max=1.0))


def _clip_nothing(parameters: Any, norm: Tensor, limit: float) -> None:
    pass


def _not_divided(losses: Tensor, tokens: int, axes: Axes) -> Tensor:
    return losses.sum()


def _wrong_scale(self: Any, tensor: Tensor) -> Tensor:
    return self.largest * tensor.abs().amax()


def _norm_without_squares(parameters: Any) -> Tensor:
    return torch.stack([own_gradient(each).sum() for each in parameters]).sum()


#: Errors in code that both sides once shared: owner and name of the function, a wrong version of
#: it, and a run that shows the error.
SHARED: dict[str, tuple[Any, str, Any, Callable[[str], Any]]] = {
    "the factor of clipping": (
        gradients,
        "clip_gradients",
        _clip_by_the_wrong_factor,
        lambda kind: updated(kind, CLIP),
    ),
    "clipping that does nothing": (
        gradients,
        "clip_gradients",
        _clip_nothing,
        lambda kind: updated(kind, CLIP),
    ),
    "the gradient norm": (
        gradients,
        "_sum_of_squares",
        _norm_without_squares,
        lambda kind: updated(kind, CLIP),
    ),
    "a loss that is not divided": (
        loss,
        "loss_to_differentiate",
        _not_divided,
        lambda kind: [torch.tensor(loss_gradient(kind))],
    ),
    "the scale of FP8": (scaling.Quantizer, "_scale", _wrong_scale, in_fp8),
    "the history of FP8's scales": (fp8, "finish_step", lambda *_: None, in_fp8),
}


@pytest.mark.parametrize("what", SHARED)
def test_an_error_of_the_parallel_models_does_not_affect_the_plain_models(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, wrong, shows = SHARED[what]
    right = shows("plain")
    monkeypatch.setattr(owner, name, wrong)
    if name == "clip_gradients":
        monkeypatch.setattr(
            "pytest_trainsafe.reference_models.parallel.data.update.clip_gradients", wrong
        )

    assert agree(shows("plain"), right)
    assert not agree(shows("parallel"), right)
