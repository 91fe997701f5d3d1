"""A loss that is a mean over the share of a rank is proposed, beside a wrapper too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.end_to_end import inner_pytest

pytestmark = pytest.mark.usefixtures("shared_fork_server")

TEST = """
from pathlib import Path
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from pytest_trainsafe import assert_trainsafe

LAYOUTS = Path(__file__).with_name("layouts.yaml")

def train(ctx):
    model = torch.nn.Linear(4, 3).to(ctx.dtype)
    ctx.initialize(model)
    model = DistributedDataParallel(model, process_group=ctx.group("dp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    with ctx.step():
        own = list(ctx.microbatches(2))
        for index in own:
            with ctx.microbatch(index):
                generator = torch.Generator().manual_seed(index)
                x = torch.randn(2, 4, generator=generator, dtype=ctx.dtype)
                loss = model(x).square().mean() / len(own)
                ctx.loss(loss)
                loss.backward()
        optimizer.step()

@pytest.mark.trainsafe(train, dp=[1, 2])
def test_it(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


def test_the_mean_is_proposed_and_written(tmp_path: Path) -> None:
    first = inner_pytest.flat(inner_pytest.run(tmp_path, TEST, "--trainsafe-annotate").stdout)

    assert "1 failed, 1 passed" in first
    assert ": the annotation `loss: {mean: [dp]}` is missing" in first
    assert "which says the loss passed to ctx.loss is a mean over the rank's own share" in first
    assert "differs from" not in first
    assert (tmp_path / "layouts.yaml").read_text().endswith("\nloss: {mean: [dp]}\n")
    assert inner_pytest.run(tmp_path, TEST).returncode == 0
