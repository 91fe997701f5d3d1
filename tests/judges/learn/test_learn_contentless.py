"""None, zeros and tensors without elements are no evidence that ranks have a value in common."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.conditions import ALWAYS
from pytest_trainsafe.judges.learn.events.events import Call, Change, Plain, Value
from pytest_trainsafe.judges.learn.events.table import TableBuilder
from pytest_trainsafe.judges.learn.inference.learn import Learned, learn
from pytest_trainsafe.judges.learn.invariant import Invariant, Support, hypothesis
from pytest_trainsafe.judges.learn.packs.pack import Pack, pack_of
from pytest_trainsafe.judges.learn.run import ObservedRun
from tests.support.learn.observed_programs import RULES
from tests.support.learn.training_loops import NONE_VALUE, PARAMETER, plain, tensor

API = "torch.testing.Link.copy"


def zeros() -> Value:
    """A tensor of zeros."""
    made = tensor(77, norm=0.0)
    assert made.tensor is not None
    return replace(made, tensor=replace(made.tensor, zero=True))


BLANK = {"None": NONE_VALUE, "zeros": zeros(), "no elements": tensor(78, (0, 4), norm=0.0)}


def run(gradients: list[Value], *, results: list[Value] | None = None) -> ObservedRun:
    """Two ranks whose gradients of a shard are `gradients[rank]` when a step ends.

    In each step they also call an API, which is given and returns `results[rank]`.
    """
    tables = []
    for rank in range(2):
        builder = TableBuilder(rank)
        for step in range(4):
            meta: dict[str, Plain] = {"step": step, "rank": rank, "tp_rank": rank, "phase": ""}
            given = (results or gradients)[rank]
            call = Call(API, meta, values={"arg.tensor": given})
            builder.entered(call)
            call.values["result"] = given
            builder.left(call)
            builder.changed(
                Change("model.shard", PARAMETER, "grad", gradients[rank], meta, changed=False)
            )
            builder.step_ended(step)
        tables.append(builder.table())
    return ObservedRun("one", tables, {"torch": "2.13.0"})


def said(learned: Learned) -> set[str]:
    """The sentences of the rules on the content of a value or a result."""
    return {
        RULES[each.claim.relation].explain(each.claim).sentence
        for each in learned.invariants
        if each.claim["attribute"] == "grad" or each.claim["property"] in ("value", "digest")
        if each.claim.relation in ("consistent", "agreement", "output")
    }


@pytest.mark.parametrize("blank", BLANK)
def test_no_rule_between_ranks_is_learned_from_values_without_content(blank: str) -> None:
    learned = learn([run([BLANK[blank]] * 2)])
    kept = {each for each in said(learned) if "is equal on the ranks" in each}
    assert not kept


def test_equal_contents_teach_that_they_are_equal() -> None:
    assert said(learn([run([tensor(5)] * 2)])) == {
        f"grad of {PARAMETER} is equal on the ranks",
        f"the content of arg.tensor of {API} is equal on the ranks",
        f"the content of result of {API} is equal on the ranks",
        f"the content of result of {API} is that of arg.tensor",
    }


def test_numbers_and_truth_values_teach_that_they_are_equal_also_if_they_are_zero() -> None:
    learned = learn([run([tensor(5)] * 2, results=[plain(0)] * 2)])
    assert f"the value of arg.tensor of {API} is equal on the ranks" in said(learned)


def test_zeros_teach_nothing_of_a_result_that_equals_an_argument() -> None:
    assert not any("is that of arg.tensor" in each for each in said(learn([run([zeros()] * 2)])))


@pytest.mark.parametrize("blank", BLANK)
def test_values_without_content_do_not_count_as_kept(blank: str) -> None:
    pack = pack_of("ranks", learn([run([tensor(5)] * 2)]))
    rules = {
        each.id
        for each in pack.invariants
        if each.claim.relation == "consistent"
        or (each.claim.relation == "agreement" and each.claim["property"] == "digest")
    }
    found = check(run([BLANK[blank]] * 2), [pack], RULES)
    assert rules
    assert not rules & found.triggered.keys()
    assert not rules & found.broken.keys()


def test_a_content_on_one_rank_only_breaks_the_rule() -> None:
    pack = pack_of("ranks", learn([run([tensor(5)] * 2)]))
    found = check(run([tensor(5), zeros()]), [pack], RULES)
    assert any(each.invariant.claim["attribute"] == "grad" for each in found.violations)


def stepped(begin: Value, ends: list[Value]) -> ObservedRun:
    """Two ranks whose parameter is `begin`, and `ends[rank]` from step 2 on."""
    tables = []
    for rank in range(2):
        builder = TableBuilder(rank)
        for step in range(5):
            meta: dict[str, Plain] = {"step": step, "rank": rank, "tp_rank": rank, "phase": ""}
            value = ends[rank] if step >= 2 else begin
            before = begin if step == 2 else None
            builder.changed(
                Change("model.bias", PARAMETER, "data", value, meta, before, changed=step == 2)
            )
            builder.step_ended(step)
        tables.append(builder.table())
    return ObservedRun("one", tables, {"torch": "2.13.0"})


def test_shards_that_are_zero_before_a_step_need_not_be_equal_after_it() -> None:
    claim = hypothesis("consistent", form="stays", variable=PARAMETER, attribute="data")
    stays = Invariant(claim, ALWAYS, (Support("one", (("", 9),)),))
    apart = [tensor(5), tensor(6)]
    for begin, broken in ((zeros(), 0), (tensor(4), 1)):
        found = check(stepped(begin, apart), [Pack("ranks", (stays,), {})], RULES)
        assert found.broken.get(stays.id, 0) == broken
