"""The order of calls in a step is judged by turns: a step may end with the first of two optimizers.

`observe()` ends a step with the first optimizer's, so what follows the same backward comes in the
next step.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.evidence import Evidence
from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.instrument.observation import observe
from pytest_trainsafe.judges.learn.invariant import Invariant, hypothesis
from pytest_trainsafe.judges.learn.packs.pack import Pack
from pytest_trainsafe.judges.learn.run import ObservedRun
from tests.support.learn.observed_programs import RULES
from tests.support.learn.two_optimizers import one, scaled

_BACKWARD, _STEP = "torch.Tensor.backward", "torch.amp.GradScaler.step"
_UNSCALE = "torch.amp.GradScaler.unscale_"


def run(train: Callable[[], None], mark: bool = False) -> ObservedRun:
    """The observed run; with `mark`, the program marks its steps, which begin with a forward."""
    torch.manual_seed(0)
    with observe() as observation:
        if mark:
            one(late=True, begin=lambda step: observation.meta(step=step))
        else:
            train()
    return ObservedRun("own", [observation.table], {})


@pytest.fixture(scope="module", name="orders")
def _orders() -> list[Invariant]:
    """What two healthy programs say of the order of calls."""
    runs = [run(one), run(lambda: scaled("early"))]
    found = learn(runs).invariants
    return [each for each in found if each.claim["form"] == "order"]


def counts(found: ObservedRun, orders: list[Invariant]) -> dict[tuple[str, str], tuple[int, int]]:
    """How many steps keep and break each order, which inference and checkers agree on."""
    evidence = Evidence()
    claims = [each.claim for each in orders]
    RULES["sequence"].examples([Frame(table) for table in found.tables], claims, evidence)
    checked = check(found, [Pack("own", tuple(orders))], RULES, min_confidence=0.0)
    sums = {}
    for each in orders:
        every = evidence.counts().get(each.claim, [])
        counted = [part for part in every if each.in_context(part[0])]
        kept = sum(passed for _, passed, _ in counted)
        broken = sum(failed for _, _, failed in counted)
        assert checked.triggered.get(each.id, 0) == kept + broken
        assert checked.broken.get(each.id, 0) == broken
        sums[each.claim.text("api"), each.claim.text("inner")] = kept, broken
    return sums


def test_the_order_of_a_backward_and_a_scaled_step_is_learned(orders: list[Invariant]) -> None:
    claims = {each.claim for each in orders}
    for inner in (_STEP, _UNSCALE):
        assert hypothesis("sequence", form="order", api=_BACKWARD, inner=inner) in claims


@pytest.mark.parametrize("kind", ["after both", "early", "in turn"])
def test_a_second_optimizer_steps_in_the_turn_of_the_first(
    kind: str, orders: list[Invariant]
) -> None:
    found = counts(run(lambda: scaled(kind)), orders)
    kept, broken = found[_BACKWARD, _STEP]
    assert broken == 0
    assert kept >= 4


def test_a_step_before_the_backward_is_no_turn_of_another_optimizer(
    orders: list[Invariant],
) -> None:
    assert counts(run(one, mark=True), orders)[_BACKWARD, _STEP] == (0, 4)
