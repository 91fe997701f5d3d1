"""Programs for `--trainsafe-init`, in a folder without an ini file or a conftest."""

import shutil
from pathlib import Path

import pytest

# Imported before inner runs: pytester forgets what they import, and some of it registers itself in
# torch, which refuses that twice.
import pytest_trainsafe.init.contact
import pytest_trainsafe.judges.compare.localize.search  # noqa: F401

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_model"

#: A program on plain PyTorch, whose micro-batches dp ranks divide.
PLAIN = """
import torch
import torch.distributed as dist

def train(ctx, hidden=4):
    model = torch.nn.Linear(hidden, 1).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.AdamW(model.parameters())
    ctx.watch(model, optimizer)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(4):
                with ctx.microbatch(index):
                    generator = torch.Generator().manual_seed(10 * step + index)
                    x = torch.randn(3, hidden, generator=generator).to(ctx.device, ctx.dtype)
                    loss = model(x).pow(2).mean() / 4
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.fixture
def folder(pytester, without_hypothesis):
    """An empty folder; pytest is started in it."""
    return pytester


@pytest.fixture
def first(folder, shared_fork_server):
    """A function that runs `pytest --trainsafe-init` for a program, in this process."""

    def run(program, *arguments):
        return folder.runpytest_inprocess("--trainsafe-init", program, *arguments)

    return run


@pytest.fixture
def own_model(folder):
    """The folder of the example with its own tensor parallelism, a package, without layouts."""
    package = folder.path / "own_model"
    package.mkdir()
    for name in ("__init__.py", "model.py", "train.py"):
        shutil.copy(EXAMPLE / name, package / name)
    return package


def rows(result):
    """The rows of a checklist: the mark and the text, joined to one line, by label."""
    found = {}
    label = ""
    for line in result.outlines:
        mark, text = line[2:9].strip(), line[24:].strip()
        if line.startswith("  ") and mark in ("ok", "note", "lacks"):
            label = line[9:24].strip()
            found[label] = f"{mark} {text}"
        elif label and line.startswith(" " * 24):
            found[label] += f" {text}"
        else:
            label = ""
    return {label: " ".join(text.split()) for label, text in found.items()}


@pytest.fixture
def rows_of():
    """The function `rows`."""
    return rows


@pytest.fixture
def plain():
    """The source of PLAIN."""
    return PLAIN
