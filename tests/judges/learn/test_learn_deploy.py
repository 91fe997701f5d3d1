"""Packs are loaded by name or path, and only what their claims need is observed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.judges.learn.check.applicable import not_checked
from pytest_trainsafe.judges.learn.instrument.patching.selection import Wanted
from pytest_trainsafe.judges.learn.invariant import Invariant, Support, hypothesis
from pytest_trainsafe.judges.learn.packs.pack import Pack, write_pack
from pytest_trainsafe.judges.learn.packs.read import PackError
from pytest_trainsafe.judges.learn.registry import relations
from pytest_trainsafe.judges.learn.relation import Needs
from pytest_trainsafe.judges.learn.use.deploy import (
    load_packs,
    observation_of,
    pack_path,
    variable_patterns,
)

RELATIONS = relations()


def _pack(name: str, *apis: str) -> Pack:
    made = [
        Invariant(
            hypothesis("contain", api=api, inner="torch.add"), support=(Support("p", (("", 3),)),)
        )
        for api in apis
    ]
    return Pack(name, tuple(made), {"p": {}})


def test_a_pack_of_the_project_is_loaded_by_its_name_or_path(tmp_path: Path) -> None:
    own = pack_path("ours", tmp_path)
    own.parent.mkdir()
    write_pack(_pack("ours", "torch.optim.*.step"), own, RELATIONS)

    for given in ("ours", "invariants/ours.pack", str(own)):
        [pack] = load_packs([given], tmp_path, RELATIONS)
        assert [each.claim["api"] for each in pack.invariants] == ["torch.optim.*.step"]


def test_a_pack_that_does_not_exist_is_refused_with_its_expected_path(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"no pack 'ourz': .*invariants/ourz\.pack does not exist"):
        load_packs(["ourz"], tmp_path, RELATIONS)


def test_only_apis_of_supported_libraries_are_observed() -> None:
    pack = _pack("p", "torch.optim.*.step", "torch.nn.functional.dropout", "antigravity.fly")

    assert observation_of([pack], RELATIONS).apis == (
        "torch.add",
        "torch.nn.functional.dropout",
        "torch.optim.*.step",
    )


@pytest.mark.parametrize(
    ("claim", "contents"),
    [
        ({"form": "finite", "place": "result.0"}, ("torch.add result",)),
        (
            {"form": "equal", "place": "result", "property": "digest", "of": "arg.input"},
            ("torch.add arg.input", "torch.add result"),
        ),
        ({"form": "equal", "place": "result", "property": "dtype", "of": "arg.input"}, ()),
    ],
)
def test_only_tensors_whose_content_a_claim_compares_are_read(
    claim: dict[str, str], contents: tuple[str, ...]
) -> None:
    claimed = Invariant(hypothesis("output", api="torch.add", **claim))
    pack = Pack("p", (claimed,), {"p": {}})

    assert observation_of([pack], RELATIONS).contents == contents


def test_needs_without_contents_read_all_tensors_of_their_apis() -> None:
    assert (Needs(frozenset({"torch.add"})) | Needs()).all_contents == {("torch.add", "*")}


@pytest.mark.parametrize(
    ("kind", "attribute", "name"),
    [
        ("torch.nn.Parameter", "grad", "torch.nn.Parameter"),
        ("optimizer.param_groups", "lr", "optimizer.param_groups.0"),
        ("optimizer.state", "step", "optimizer1.state.model.weight"),
        ("scheduler", "last_epoch", "scheduler.0"),
        ("sampler", "epoch", "sampler"),
    ],
)
def test_the_patterns_of_a_variable_kind_match_only_its_variables_and_attribute(
    kind: str, attribute: str, name: str
) -> None:
    wanted = Wanted(variable_patterns(kind, attribute))

    assert wanted.takes(name, name, attribute)
    assert not wanted.takes(name, name, f"{attribute}x")
    assert not wanted.takes("other.0", "other", attribute)


def test_rules_of_a_library_that_is_not_installed_are_listed_as_not_checked() -> None:
    pack = _pack("ours", "package_that_is_not_installed.Engine.step")

    [sentence] = not_checked((pack,), (), RELATIONS, ranks=1).sentences()

    assert pack.invariants[0].id in sentence
    assert sentence.endswith("because package_that_is_not_installed is not installed")
