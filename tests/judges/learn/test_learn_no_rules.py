"""What correct programs do by chance is no subject of rules."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from pytest_trainsafe import observe
from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.events.table import Table
from pytest_trainsafe.judges.learn.evidence import Evidence
from pytest_trainsafe.judges.learn.invariant import hypothesis
from tests.support.learn.observed_programs import RULES, checked, learned, partial, said
from tests.support.learn.observing import Kept


def proposed(table: Table, relation: str) -> list[str]:
    """The claims of a relation that a run suggests, in words."""
    rule = RULES[relation]
    return [rule.explain(claim).sentence for claim in rule.hypotheses([Frame(table)])]


def trained() -> Table:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scheduler = ReduceLROnPlateau(optimizer, patience=1)
    with observe() as observation:
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 3)).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            optimizer.step()
            scheduler.step(loss.item())
    return observation.table


def test_a_norm_before_clipping_has_no_limit() -> None:
    assert not [each for each in proposed(trained(), "output") if "max_norm" in each]


def test_when_a_loss_is_the_best_so_far_has_no_period() -> None:
    said = proposed(trained(), "periodic")
    assert any("last_epoch of every scheduler" in each for each in said)
    assert not [each for each in said if each.startswith(("best of", "num_bad_epochs of"))]


def test_a_vector_may_keep_its_value() -> None:
    def still(name: str = "") -> None:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).square().mean().backward()
            if name and step == 4:
                getattr(model, name).grad.mul_(1e-12)
            optimizer.step()

    rules = learned(still, "periodic")
    for name, broken in (("weight", True), ("bias", False)):
        found = checked(partial(still, name=name), rules)
        assert any("data of every" in each for each in said(found)) == broken


def test_what_a_collective_is_given_to_write_to_is_not_read(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with observe(["torch.distributed.all_gather"]) as observation:
            dist.all_gather([torch.ones(2)], torch.ones(2))
    finally:
        dist.destroy_process_group()
    (call,) = Kept.of(observation.table).called("torch.distributed.all_gather")
    given, sent = (call.values[name].tensor for name in ("arg.tensor_list.0", "arg.tensor"))
    assert given is not None
    assert sent is not None
    assert (given.digest, given.shape) == (0, (2,))
    assert sent.digest


def test_a_function_of_nothing_that_requires_gradients_has_no_rule_on_them() -> None:
    def frame(requires: bool, graded: bool) -> Frame:
        weight = torch.ones(2, 2, requires_grad=requires)
        with observe(["torch.nn.functional.linear"]) as observation, torch.set_grad_enabled(graded):
            for _ in range(4):
                nn.functional.linear(torch.ones(1, 2), weight)
        return Frame(observation.table)

    rule = RULES["output"]
    claim = hypothesis("output", api="torch.nn.functional.linear", form="no_grad", place="result")
    for requires, graded, judged in ((False, True, 0), (True, False, 4), (True, True, 4)):
        evidence = Evidence()
        rule.examples([frame(requires, graded)], [claim], evidence)
        counts = evidence.counts().get(claim, [])
        assert sum(passed + failed for _, passed, failed in counts) == judged
        assert bool(sum(failed for _, _, failed in counts)) is (requires and graded)
