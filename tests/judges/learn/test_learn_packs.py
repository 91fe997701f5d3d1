"""A written pack is read back unchanged, and a wrong line of the file is refused by its number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from pytest_trainsafe.judges.learn.conditions import Condition, Precondition
from pytest_trainsafe.judges.learn.fields import MAX_TEXT
from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.invariant import Invariant, Support, hypothesis
from pytest_trainsafe.judges.learn.packs.pack import Pack, pack_of, pack_text, write_pack
from pytest_trainsafe.judges.learn.packs.read import PackError, parse_pack, read_pack
from pytest_trainsafe.judges.learn.packs.update import contradictions, update
from pytest_trainsafe.judges.learn.relation import Relation
from pytest_trainsafe.judges.learn.use.judged import setting_of
from pytest_trainsafe.trace.run_spec import RunSpec
from tests.support.learn.training_loops import LEARNED, run_of

Relations = Mapping[str, Relation]


def small() -> Pack:
    """A pack of two invariants."""
    support = (Support("mlp", (("", 12),)),)
    contain = hypothesis("contain", api="torch.optim.*.step", inner="torch.optim.functional.adam")
    when = Precondition(((Condition("constant", "class", "Adam"),),))
    within = (("phase", ("optimizer", None)),)
    order = hypothesis("sequence", form="order", api="a.first", inner="a.second")
    invariants = (Invariant(contain, when, support, within), Invariant(order, support=support))
    return Pack("own", invariants, {"mlp": {"torch": "2.13.0"}})


def test_a_pack_that_is_written_and_read_is_unchanged(
    pack: Pack, ranks_pack: Pack, relations: Relations, tmp_path: Path
) -> None:
    for each in (pack, ranks_pack, small()):
        path = tmp_path / "x.pack"
        write_pack(each, path, relations)
        assert read_pack(path, relations) == each


def test_a_pack_file_keeps_the_configurations_of_its_programs(
    relations: Relations, tmp_path: Path
) -> None:
    support = (Support("mlp", (("dp=1", 4), ("dp=2", 8))),)
    pack = replace(
        small(), invariants=tuple(replace(each, support=support) for each in small().invariants)
    )
    path = tmp_path / "x.pack"
    write_pack(pack, path, relations)

    assert 'seen = {"mlp": {"dp=1": 4, "dp=2": 8}}\n' in path.read_text()
    assert read_pack(path, relations) == pack
    assert pack.invariants[0].examples == 12


def test_the_text_of_a_pack_does_not_depend_on_the_order_of_runs(
    pack: Pack, relations: Relations
) -> None:
    runs = [run_of(plan) for plan in reversed(list(LEARNED.values()))]
    assert pack_text(pack_of("pytorch", learn(runs)), relations) == pack_text(pack, relations)


def test_an_invariant_in_a_pack_file_has_its_claim_and_precondition_as_sentences(
    relations: Relations,
) -> None:
    text = pack_text(small(), relations)
    assert (
        "says = every call of torch.optim.*.step calls torch.optim.functional.adam\n"
        "when = class is 'Adam'\n"
    ) in text


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("schema = 2", "schema = 7", 7, "has schema 7, but this release reads schema 2"),
        ("schema = 2", "hello", 7, "is this file a pack?"),
        ('name = "own"', "name = own", 8, 'must be a text, as in "pytorch"'),
        ('name = "own"', 'title = "own"', 8, "before the first invariant, only lines"),
        ('"torch": "2.13.0"', '"torch": 2', 9, "must be versions"),
        ('program "mlp"', 'program "lm"', 14, "was seen in 'mlp', which no `program` line names"),
        ("[contain-", "[contain ", 14, "an invariant begins with its name in brackets"),
        ("says = every", "says = no", 15, "`says` does not match `claim`"),
        ("when = class", "when = clas", 16, "`when` does not match `precondition`"),
        ('"relation": "contain"', '"relation": "contains"', 18, "did you mean 'contain'?"),
        ('"inner": ', '"outer": ', 18, "does not allow the parameters of this claim"),
        ('[[["constant", "class", "Adam"]]]', "[[[1]]]", 14, "must begin with one of constant"),
        ('[[["constant", "class", "Adam"]]]', "[]", 14, "write [[]] for one that always"),
        ('[[["constant", "class", "Adam"]]]', "{", 19, "must be JSON as in [[]] for always"),
        ('["optimizer", null]', "[]", 14, "a field of `within` must have 1 to"),
        ('["optimizer", null]', "3", 20, "must be JSON as in"),
        ('{"mlp": 12}', '{"mlp": -1}', 14, "must be 1 or more"),
        ('{"mlp": 12}', '{"mlp": {"dp=2": 0}}', 14, "must be 1 or more"),
        ('{"mlp": 12}', '{"mlp": {}}', 14, "must have 1 to 1000 configurations"),
        ('{"mlp": 12}', '{"mlp": [2]}', 21, '{"program": {"configuration": 12}}'),
        ("seen = ", "sen = ", 21, "did you mean 'seen'?"),
        ("\nseen = ", "\n# ", 14, "has no seen"),
        ("\nwhen = ", '\nseen = {"mlp": 1}\nwhen = ', 22, "seen appears twice"),
    ],
)
def test_a_wrongly_edited_pack_is_refused_with_the_line_number(
    old: str, new: str, line: int, message: str, relations: Relations
) -> None:
    text = pack_text(small(), relations)
    assert old in text
    with pytest.raises(PackError) as raised:
        parse_pack(text.replace(old, new, 1), "own.pack", relations)
    assert str(raised.value).startswith(f"own.pack: line {line}: "), raised.value
    assert message in str(raised.value)


def test_a_claim_edited_together_with_its_sentence_is_refused(relations: Relations) -> None:
    text = pack_text(small(), relations).replace("a.first", "a.third")
    with pytest.raises(PackError, match="name of an invariant is computed from its claim"):
        parse_pack(text, "own.pack", relations)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("clipping finds", "clipping loses", "`says` does not match `claim`"),
        ('"when"', '"then"', "the keys are says, when, claim"),
        ('"says": "clipping finds gradients"', '"says": 1', "must be a text in quotes"),
        (', "within": {}', "", "has no within"),
        ("{}, ", "{, ", "must be JSON"),
    ],
)
def test_a_folded_rule_that_is_wrongly_edited_is_refused(
    old: str, new: str, message: str, relations: Relations
) -> None:
    support = (Support("mlp", (("", 12),)),)
    rule = Invariant(hypothesis("slip", slip="clipped-nothing"), support=support)
    text = pack_text(Pack("own", (rule,), {"mlp": {}}), relations)
    assert text.count("\n[") == 1
    assert text.endswith("}}\n")
    assert parse_pack(text, "own.pack", relations).invariants == (rule,)
    assert old in text
    with pytest.raises(PackError, match=re.escape(message)):
        parse_pack(text.replace(old, new, 1), "own.pack", relations)


def test_an_invariant_that_is_listed_twice_is_refused(relations: Relations) -> None:
    text = pack_text(small(), relations)
    copy = text[text.index("[sequence-") :]
    with pytest.raises(PackError, match=r"line 28: sequence-\w+ appears twice"):
        parse_pack(text + "\n" + copy, "own.pack", relations)


def test_an_invariant_can_be_deleted_from_the_text_of_a_pack(relations: Relations) -> None:
    text = pack_text(small(), relations)
    shorter = text[: text.index("[sequence-")]
    assert parse_pack(shorter, "own.pack", relations).invariants == small().invariants[:1]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"[" * 100_000])
def test_a_file_that_is_no_pack_is_refused_with_its_path(
    content: bytes, relations: Relations, tmp_path: Path
) -> None:
    path = tmp_path / "x.pack"
    path.write_bytes(content)
    with pytest.raises(PackError, match=re.escape(str(path))):
        read_pack(path, relations)


def test_a_missing_pack_file_is_refused(relations: Relations, tmp_path: Path) -> None:
    with pytest.raises(PackError, match="No such file"):
        read_pack(tmp_path / "missing.pack", relations)


def test_an_update_lists_new_changed_and_unsupported_invariants(relations: Relations) -> None:
    old = small()
    kept, gone = old.invariants
    changed = replace(kept, precondition=Precondition(((Condition("exist", "class"),),)))
    fresh = Invariant(hypothesis("membership", form="held"), support=(Support("lm", (("", 3),)),))
    learned = Pack("new", (changed, fresh), {"lm": {"torch": "2.14"}})
    found = update(old, learned)
    assert found.new == (fresh,)
    assert found.changed == ((kept, changed),)
    assert found.unsupported == (gone,)
    assert set(found.pack.invariants) == {changed, fresh, gone}
    assert found.pack.name == "own"
    text = pack_text(found.pack, relations)
    assert {each.id for each in parse_pack(text, "own.pack", relations).invariants} == {
        each.id for each in found.pack.invariants
    }
    assert update(old, old).empty


def test_an_update_keeps_the_support_of_runs_that_were_not_repeated() -> None:
    claim = hypothesis("membership", form="held")

    def pack(*given: Support, within: tuple[str | bool, ...] = ("forward",)) -> Pack:
        held = Invariant(claim, support=given, within=(("phase", within),))
        return Pack("own", (held,), {each.program: {} for each in given})

    old_support = Support("lm", (("", 3),)), Support("mlp", (("dp=1", 4), ("dp=2", 8)))
    new_support = (Support("mlp", (("dp=2", 6), ("dp=4", 2))),)
    found = update(pack(*old_support), pack(*new_support, within=("backward",)))

    [held] = found.pack.invariants
    assert held.support == (
        Support("lm", (("", 3),)),
        Support("mlp", (("dp=1", 4), ("dp=2", 6), ("dp=4", 2))),
    )
    assert held.within == (("phase", ("backward", "forward")),)
    [both] = update(
        pack(*old_support, within=(True,)), pack(*new_support, within=(False,))
    ).pack.invariants
    assert both.within == ()  # as if both were learned together: True or False is no restriction
    assert found.pack.programs.keys() == {"lm", "mlp"}
    assert found.empty


def test_contradicting_invariants_of_two_packs_are_reported(relations: Relations) -> None:
    support = (Support("mlp", (("", 3),)),)
    first = Invariant(hypothesis("sequence", form="order", api="a", inner="b"), support=support)
    second = Invariant(hypothesis("sequence", form="order", api="b", inner="a"), support=support)
    [found] = contradictions([Pack("one", (first,)), Pack("two", (second,))], relations)
    assert str(found) == (
        f"{first.id} of the pack one contradicts {second.id} of the pack two: delete one of them, "
        "or use only one of the packs"
    )
    assert contradictions([small(), small()], relations) == ()


def test_the_configuration_of_a_run_has_point_dtype_seed_and_arguments() -> None:
    spec = RunSpec(program="train:train", dtype="float32", axes=(("dp", 2),), seed=3)
    assert setting_of(spec) == "dp=2, float32, seed 3"
    chosen = structs.replace(spec, arguments='{"lr": 0.1}')
    assert setting_of(chosen) == 'dp=2, float32, seed 3, {"lr": 0.1}'


def test_a_configuration_that_is_too_long_for_a_pack_is_shortened() -> None:
    spec = RunSpec(program="train:train", dtype="float32", axes=(("dp", 2),))
    texts = [
        setting_of(structs.replace(spec, arguments=f'{{"text": "{"x" * 400}{end}"}}'))
        for end in "ab"
    ]
    assert all(text.startswith("dp=2, float32, seed 0, arguments ") for text in texts)
    assert all(len(text) <= MAX_TEXT for text in texts)
    assert texts[0] != texts[1]
