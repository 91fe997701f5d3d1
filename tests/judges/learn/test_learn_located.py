"""Correct programs that were reported, and mistakes that were not, each with its twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.columns.entries import Entries
from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.events.events import Call, Plain, Value
from pytest_trainsafe.judges.learn.events.table import TableBuilder
from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.inference.select import confidence
from pytest_trainsafe.judges.learn.invariant import Invariant, Support, hypothesis
from pytest_trainsafe.judges.learn.names import ZERO_GRAD
from pytest_trainsafe.judges.learn.packs.pack import Pack, pack_of, write_pack
from pytest_trainsafe.judges.learn.packs.update import contradictions
from pytest_trainsafe.judges.learn.use.deploy import load_packs
from pytest_trainsafe.judges.learn.use.judged import judge_packs
from tests.support.learn.observed_programs import (
    RULES,
    Net,
    checked,
    data,
    learned,
    loop,
    observed,
    partial,
    said,
)
from tests.support.learn.training_loops import LEARNED, Plan, run_of

#: The runs of healthy programs of one process and of several ranks, of which unions are learned.
HEALTHY = [
    *(run_of(plan) for plan in LEARNED.values()),
    *(run_of(Plan(f"dp{size}", dp=size, steps=4, evaluate=False)) for size in (1, 2)),
]


def constant(value: bool, phase: str, program: str = "own") -> Invariant:
    """The rule that an argument has a value, seen in one phase of one program."""
    params = {"api": "f", "place": "arg.on", "property": "value", "form": "constant"}
    claim = hypothesis("argument", value=value, **params)
    return Invariant(claim, support=(Support(program, (("", 4),)),), within=(("phase", (phase,)),))


# Packs that load again.


def test_rules_of_different_contexts_do_not_contradict_each_other() -> None:
    apart = Pack("own", (constant(True, "forward"), constant(False, "evaluation", "other")))
    assert contradictions([apart], RULES) == ()


def test_rules_of_one_context_still_contradict_each_other() -> None:
    together = Pack("own", (constant(True, "forward"), constant(False, "forward", "other")))
    assert len(contradictions([together], RULES)) == 1


def test_rules_that_one_run_kept_do_not_contradict_each_other() -> None:
    kept = Pack("own", (constant(True, "forward"), constant(False, "forward")))
    assert contradictions([kept], RULES) == ()


@settings(max_examples=20, deadline=None, derandomize=True)
@given(chosen=st.sets(st.integers(0, len(HEALTHY) - 1), min_size=1, max_size=6))
def test_a_pack_that_is_learned_from_any_healthy_programs_loads_again(
    chosen: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    pack = pack_of("some", learn([HEALTHY[index] for index in sorted(chosen)]))
    folder = tmp_path_factory.mktemp("packs")
    write_pack(pack, folder / "some.pack", RULES)
    assert load_packs([str(folder / "some.pack")], folder, RULES) == (pack,)


# Gradients that are cleared.


def test_gradients_that_a_closure_clears_count_for_its_own_step() -> None:
    """Lightning steps early at the end of an epoch: the closure clears gradients in the step."""

    def train(clears: bool = True) -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def closure(clear: bool) -> torch.Tensor:
            if clear and clears:
                optimizer.zero_grad()
            loss = model(data()).square().mean()
            loss.backward()
            return loss

        for _ in range(4):
            closure(True)
            optimizer.step(lambda: closure(False))
            optimizer.step(lambda: closure(True))  # a window of one batch

    rules = learned(partial(plain, steps=6), "renewed")
    assert rules
    assert checked(train, rules).violations == ()
    assert checked(partial(train, clears=False), rules).violations


def test_only_gradients_of_its_own_parameters_are_cleared_for_an_optimizer() -> None:
    def train(wrong: bool = False) -> None:
        first, second = Net(), Net()
        one, two = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (first, second))
        for _ in range(4):
            one.zero_grad()
            (one if wrong else two).zero_grad()
            (first(data()) + second(data())).square().mean().backward()
            one.step()
            two.step()

    rules = learned(train, "renewed")
    assert checked(train, rules).violations == ()
    found = checked(partial(train, wrong=True), rules)
    # The first optimizer counts the steps, so the other one steps at the beginning of the next.
    assert {each.step for each in found.violations} == {2, 3, 4}
    assert said(found) == [
        "between two calls of torch.optim.*.step, grad of some torch.nn.Parameter is cleared"
    ]


# Steps that update something.


def adapter(begins: bool = True) -> None:
    """A low-rank adapter, of which only the second matrix begins with zeros, or both."""
    down, up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)
    model = nn.Sequential(down, up)
    for layer in (up,) if begins else (down, up):
        nn.init.zeros_(layer.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model.zero_grad()
        (model(data()) - 1).square().mean().backward()
        optimizer.step()


def test_the_first_change_of_zeros_is_an_update() -> None:
    rules = updates()
    assert checked(adapter, rules).violations == ()
    assert checked(partial(adapter, begins=False), rules).violations


def test_an_optimizer_that_converged_may_rest() -> None:
    def train(kind: Callable[..., torch.optim.Optimizer]) -> None:
        model = nn.Linear(4, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = kind(model.parameters())

        def closure() -> float:
            optimizer.zero_grad()
            loss = model(data()).square().mean()
            loss.backward()
            return loss.item()

        for _ in range(3):
            optimizer.step(closure)

    rules = updates()
    assert checked(partial(train, kind=torch.optim.LBFGS), rules).violations == ()
    assert checked(partial(train, kind=partial_sgd), rules).violations


def partial_sgd(parameters: object) -> torch.optim.Optimizer:
    """An optimizer without a rule for when to stop."""
    return torch.optim.SGD(parameters, lr=0.1)  # type: ignore[arg-type]


def updates() -> list[Invariant]:
    """The rule that a step updates parameters, learned from a plain loop."""
    found = learned(plain, "contain")
    return [
        each
        for each in found
        if each.claim["api"] == "torch.optim.*.step" and each.claim["change"] == "updated"
        and each.claim["variable"] == "torch.nn.Parameter"
    ]  # fmt: skip


def plain(steps: int = 4, whole: bool = True) -> None:
    """A plain loop, whose optimizer has the whole model or its head."""
    model = Net()
    held = model if whole else model.head
    loop(model, torch.optim.SGD(held.parameters(), lr=0.1), steps=steps)


def test_the_example_that_keeps_a_rule_on_changes_is_a_change() -> None:
    rules = [
        each for each in learned(plain, "periodic")
        if each.claim["attribute"] == "data" and each.claim["variable"] == "torch.nn.Parameter"
    ]  # fmt: skip
    found = checked(partial(plain, whole=False), rules)
    assert found.violations
    assert all("(unchanged)" in each.quoted for each in found.violations)
    assert all("(unchanged)" not in each.kept for each in found.violations if each.kept)


# Orders, where a program's own functions are observed too.


def inside(outer: str) -> Frame:
    """A table in which each zero_grad is called by a function."""
    builder = TableBuilder()
    for step in range(3):
        meta: dict[str, Plain] = {"step": step, "phase": ""}
        call = Call(outer, meta)
        builder.entered(call)
        clear = Call("torch.optim.SGD.zero_grad", meta, call)
        builder.entered(clear)
        builder.left(clear)
        builder.left(call)
        done = Call("torch.optim.SGD.step", meta, values={"self": Value("SGD", identity=1)})
        builder.entered(done)
        builder.left(done)
        builder.step_ended(step)
    return Frame(builder.table())


def test_a_function_of_the_program_does_not_hide_the_calls_of_torch_in_it() -> None:
    assert not Entries(inside("my_trainer.prepare")).is_nested(ZERO_GRAD)
    assert Entries(inside("torch.prepare")).is_nested(ZERO_GRAD)


# Packs of a whole suite.


def test_a_pack_of_the_whole_suite_that_does_not_apply_is_a_note() -> None:
    run = run_of(next(iter(LEARNED.values())))
    pack = Pack("amp", (constant(True, "forward"),))
    [finding] = judge_packs(run, [pack], RULES).findings
    assert (finding.verdict, finding.check) == ("inconclusive", "learn:nothing")

    suite = judge_packs(run, [pack], RULES, suite=True)
    assert not suite.findings
    assert "none of the 1 invariants of amp applied to this run" in suite.not_compared[0]


# Seeds.


def test_a_rule_that_two_seeds_keep_is_enforced_with_a_third_seed() -> None:
    plan = next(iter(LEARNED.values()))
    healthy, fault = run_of(plan), run_of(replace(plan, fault="write_outside"))
    runs = [replace(healthy, setting=f"dp=1, seed {seed}") for seed in (1, 2)]
    one, two = (pack_of("own", learn(runs[:count])) for count in (1, 2))

    def broken(pack: Pack, setting: str) -> bool:
        return bool(check(replace(fault, setting=setting), [pack], RULES).violations)

    assert broken(two, "dp=1, seed 3")
    assert not broken(one, "dp=1, seed 3")
    assert not broken(two, "dp=2, seed 3")
    assert not check(replace(healthy, setting="dp=1, seed 3"), [two], RULES).violations
    rule = next(each for each in two.invariants if each.claim.relation == "within")
    within, argument = RULES["within"], '{"seed":7}'
    seen = replace(rule, support=(Support("own", (('{"seed":1}', 4), ('{"seed":2}', 4))),))
    assert confidence(seen, within, "own", argument) > 0.75


# Modes, gradients, autocast, dropout and states that are loaded.


def evaluated(returns: bool = True) -> None:
    """A loop that evaluates between two steps, and returns to training mode."""
    model = Net()

    def validate() -> None:
        model.eval()
        with torch.no_grad():
            model(data())
        model.train(returns)

    loop(model, torch.optim.SGD(model.parameters(), lr=0.1), validate)


def test_a_model_that_stays_in_evaluation_mode_is_reported() -> None:
    rules = learned(plain, "mode")
    assert checked(evaluated, rules).violations == ()
    found = checked(partial(evaluated, returns=False), rules)
    assert said(found) == ["before each call of torch.optim.*.step, a model runs in training mode"]


def test_a_parameter_without_a_gradient_is_reported() -> None:
    def train(detaches: bool = False) -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            hidden = model.body(data())
            model.head(hidden.detach() if detaches else hidden).square().mean().backward()
            optimizer.step()

    rules = [each for each in learned(plain, "membership") if each.claim["form"] == "graded"]
    assert checked(train, rules).violations == ()
    found = checked(partial(train, detaches=True), rules)
    assert found.violations[0].step == 0


def test_an_optimizer_without_gradients_is_no_example_of_a_missing_one() -> None:
    def train() -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(data())
        optimizer.step()

    rules = [each for each in learned(plain, "membership") if each.claim["form"] == "graded"]
    assert checked(train, rules).triggered == {}


def cast(around: str = "forward") -> None:
    """A loop with autocast around the forward and the loss, or around all."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(data()).float().square().mean()
        with torch.autocast("cpu", torch.bfloat16, enabled=around == "all"):
            loss.backward()
            optimizer.step()


def test_a_backward_in_autocast_is_reported() -> None:
    rules = learned(cast, "context")
    assert checked(cast, rules).violations == ()
    broken = said(checked(partial(cast, around="all"), rules))
    assert "torch.autograd.backward is called outside of autocast" in broken
    assert "torch.optim.*.step is called outside of autocast" in broken


class Dropped(nn.Module):
    """A module that calls dropout as a function."""

    def __init__(self, follows: bool) -> None:
        super().__init__()
        self.layer, self.follows = nn.Linear(4, 4), follows

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        out = nn.functional.dropout(given, 0.1, training=self.training or not self.follows)
        result: torch.Tensor = self.layer(out)
        return result


def test_dropout_in_evaluation_is_reported() -> None:
    def train(follows: bool = True) -> None:
        model = Dropped(follows)

        def validate() -> None:
            model.eval()
            model(data())
            model.train()

        loop(model, torch.optim.SGD(model.parameters(), lr=0.1), validate)

    rules = [each for each in learned(train, "argument") if each.claim["form"] == "off"]
    assert checked(train, rules).violations == ()
    [sentence] = said(checked(partial(train, follows=False), rules))
    assert sentence.startswith("arg.training of torch.nn.functional.dropout is off")


def test_a_state_whose_keys_do_not_fit_is_reported() -> None:
    def train(prefix: str = "") -> None:
        model = Net()
        for _ in range(3):
            state = {f"{prefix}{name}": value for name, value in model.state_dict().items()}
            model.load_state_dict(state, strict=False)
            plain(steps=1)

    rules = [each for each in learned(train, "output") if each.claim["form"] == "empty"]
    assert checked(train, rules).violations == ()
    assert all(RULES["output"].valid(each.claim) for each in rules)
    broken = said(checked(partial(train, prefix="model."), rules))
    assert [sentence.split()[0] for sentence in broken] == ["missing_keys", "unexpected_keys"]


class Masked(nn.Module):
    """A module whose forward has an option."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, given: torch.Tensor, causal: bool = False) -> torch.Tensor:
        found: torch.Tensor = self.layer(given.tril() if causal else given)
        return found


def test_an_option_of_a_module_of_the_program_that_is_lost_is_reported() -> None:
    def train(causal: bool = True) -> None:
        model = Masked()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(data(), causal=causal).square().mean().backward()
            optimizer.step()

    rules = learned(train, "argument")
    assert checked(train, rules).violations == ()
    broken = said(checked(partial(train, causal=False), rules))
    assert "arg.causal of torch.nn.Module.forward is True" in broken


def test_gradients_that_are_carried_over_an_epoch_are_reported() -> None:
    def train(carries: bool = False) -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            batches = 4 if not carries else 5
            for batch in range(batches):
                model(data()).square().mean().backward()
                if batch in (1, 3):
                    optimizer.step()
                    optimizer.zero_grad()

    rules = [each for each in learned(train, "sequence") if each.claim["form"] == "times"]
    assert checked(train, rules).violations == ()
    broken = said(checked(partial(train, carries=True), rules))
    assert (
        "between two calls of torch.optim.*.step, torch.Tensor.backward is called exactly 2 times"
        in broken
    )


def test_the_set_up_names_the_optimizer_of_each_step(tmp_path: Path) -> None:
    run = observed(plain)
    frame = Frame(run.tables[0])
    names = frame.groups["torch.optim.*.step"].slots
    assert {"self.name", "self.modes", "self.ungraded"} <= names.keys()
