"""Programs of the tests: what models and configs may be like, and what they must not."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pytest_trainsafe.fixtures.deepspeed import deepspeed_program

ADAM = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}}}

#: Exit codes of the reproductions in docs/upstream: the difference is there; this machine cannot
#: run it.  Every other code but 0 is a crash.
DIFFERENT, UNSUPPORTED = 3, 77

CONFIG_FILE = Path(__file__).with_name("ds_config.json")


class Net(nn.Module):
    """Layers of which one is frozen and one is never used; the mean squared output is the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(6, 10)
        self.frozen = nn.Linear(10, 10)
        self.unused = nn.Linear(10, 3)
        self.head = nn.Linear(10, 5)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.frozen(torch.tanh(self.embedding(x))))
        return self.head(hidden).pow(2).mean()


def batch(step: int, index: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(100 * step + index)
    return (torch.randn(3, 6, generator=generator),)


@deepspeed_program(ADAM, microbatches=2, steps=2)
def odd_parameters() -> Any:
    return Net(), batch


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    """Two groups: the head learns faster."""
    head = list(model.head.parameters())
    others = [p for n, p in model.named_parameters() if "head" not in n and p.requires_grad]
    return torch.optim.SGD([{"params": others}, {"params": head, "lr": 0.3}], lr=0.1, momentum=0.9)


@deepspeed_program({"gradient_clipping": 0.05}, microbatches=2, steps=2, optimizer=momentum)
def client_optimizer() -> Any:
    return Net(), batch


@deepspeed_program("ds_config.json", steps=2)
def config_of_a_file() -> Any:
    return Net(), batch


def written() -> dict[str, Any]:
    """The config of the file."""
    found: dict[str, Any] = json.loads(CONFIG_FILE.read_text())
    return found


class Overflowing(Net):
    """Its loss is infinite at the second step, and where a process group is, of DeepSpeed, only."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        loss = super().forward(x)
        return loss * torch.inf if dist.is_initialized() and self.calls == 2 else loss


@deepspeed_program({**ADAM, "bf16": {"check_grad_overflow": True}}, microbatches=1, steps=2)
def overflowing() -> Any:
    return Overflowing(), batch


class Different(Exception):
    """A reproduction ran, and shows the difference that it is about."""


class Unsupported(Exception):
    """A reproduction cannot run on this machine; the message is its reason."""


def run_script(script: str, folder: str) -> None:
    """Run a reproduction as torchrun would, with `folder` for the files that it writes.

    Raises Different or Unsupported where its exit code says so, and what the script raises
    where it crashes.
    """
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.chdir(folder)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        last = printed.getvalue().strip().rpartition("\n")[2]
        if end.code == DIFFERENT:
            raise Different(last) from end
        if end.code == UNSUPPORTED:
            raise Unsupported(last) from end
        if end.code:
            raise
    finally:
        print(printed.getvalue(), end="")


def of_two_models(model: nn.Module) -> torch.optim.Optimizer:
    """Holds a layer that is no part of the model."""
    groups = [{"params": list(model.parameters())}, {"params": [*nn.Linear(2, 7).parameters()]}]
    return torch.optim.AdamW(groups, lr=0.1)


@deepspeed_program({}, microbatches=1, steps=1, optimizer=of_two_models)
def two_models() -> Any:
    return Net(), batch


class Words(nn.Module):
    """Tokens whose embedding has sparse gradients; the mean squared output is the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 6, sparse=True)
        self.head = nn.Linear(6, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.words(tokens))).pow(2).mean()


def tokens(step: int, index: int) -> tuple[torch.Tensor, ...]:
    """Tokens of which some are repeated, and some are in no micro-batch."""
    generator = torch.Generator().manual_seed(100 * step + index)
    return (torch.randint(0, 8, (2, 6), generator=generator),)


SGD = {"optimizer": {"type": "SGD", "params": {"lr": 0.5}}}


@deepspeed_program({**SGD, "gradient_clipping": 0.01}, microbatches=4, steps=2)
def sparse_embedding() -> Any:
    return Words(), tokens
