"""One table of options: every setting is in it, in the header, and in the documentation."""

from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.config import profiles, table
from pytest_trainsafe.config.header import header
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.rungs.table import DTYPES
from pytest_trainsafe.core.usage import listing
from pytest_trainsafe.sweep.signature import SETTING_WORDS, SIGNATURE

PAGE = Path(__file__).parents[2] / "docs" / "usage.md"

#: Fields of Settings that no option sets and the header does not name: where something is from.
DERIVED = {"sweep_from_ini", "suite_packs", "root", "started", "rerun"}

#: Fields of Settings that no option sets; besides those, what hooks return.
OTHERS = DERIVED | {"adapters", "judges", "relations", "launchers", "rungs"}

#: A value of each field that is not its default, and its line in the header.
CHANGED: dict[str, tuple[Any, str]] = {
    "sweep": ((("tp", ("1", "2")), ("cp", ("1",))), "trainsafe sweep: tp=1,2 cp=1"),
    "cover": (2, "trainsafe: cover pairwise"),
    "max_world_size": (16, "trainsafe: max-world-size 16"),
    "dtypes": (("float64", "float32"), "trainsafe: dtype float64,float32"),
    "launcher": ("torchrun", "trainsafe: launcher torchrun"),
    "device": ("cpu", "trainsafe: device cpu"),
    "network": ("host", "trainsafe: network host"),
    "timeout": (1.5, "trainsafe: timeout 1.5"),
    "seed": (3, "trainsafe: seed 3"),
    "accept": (("moved", "dropout"), "trainsafe: accept moved,dropout"),
    "record": ("sketch", "trainsafe: record sketch"),
    "record_kinds": (("loss",), "trainsafe: record-kinds loss"),
    "record_modules": (("a.*",), "trainsafe: record-modules a.*"),
    "localize": (0.0, "trainsafe: localize off"),
    "keep_traces": ("kept", "trainsafe: keep-traces kept"),
    "report": ("page", "trainsafe: report page"),
    "slots": (3, "trainsafe: slots 3"),
    "annotate": ("/root", "trainsafe: annotate"),
    "no_cache": (True, "trainsafe: no-cache"),
    "cache_size": (1_500_000_000, "trainsafe: cache-size 1.5GB"),
    "cache_inputs": (("$A",), "trainsafe: cache-inputs $A"),
    "profile": ("ci", "trainsafe: profile ci"),
    "adapters": (("our:Adapter",), "trainsafe: adapters our:Adapter"),
    "judges": (("our:Judge",), "trainsafe: judges our:Judge"),
    "relations": (("our:Relation",), "trainsafe: relations our:Relation"),
    "launchers": ((("mine", "our:Mine"),), "trainsafe: launchers mine"),
    "rungs": (("mine",), "trainsafe: rungs mine"),
    "max_threads": (8, "trainsafe: max-threads 8"),
    "rng": (False, "trainsafe: rng off"),
    "packs": (("pytorch", "our/own.pack"), "trainsafe: packs pytorch,our/own.pack"),
    "packs_report": (True, "trainsafe: packs-report"),
    "learn": ("learned", "trainsafe: learn learned"),
    "init": ("pretrain:train", "trainsafe: init pretrain:train"),
    "plan": ("json", "trainsafe: plan json"),
    "shard": ((2, 4), "trainsafe: shard 2/4"),
    "from_plan": ("plan.json", "trainsafe: from-plan plan.json"),
    "github": ("off", "trainsafe: github off"),
    "debug": (0, "trainsafe: debug 0"),
    "replay": (("/t/run", 3), "trainsafe: replay /t/run@3"),
}


def test_every_setting_has_an_option() -> None:
    assert set(Settings._fields) - OTHERS == {o.field for o in table.OPTIONS}
    assert set(CHANGED) == set(Settings._fields) - DERIVED


@pytest.mark.parametrize("field", CHANGED)
def test_the_header_names_a_setting_that_is_not_its_default(field: str) -> None:
    value, line = CHANGED[field]

    assert header(Settings()._replace(**{field: value})) == [line]


def test_the_header_is_empty_for_default_settings_and_has_at_most_two_lines() -> None:
    everything = Settings(**{field: value for field, (value, _) in CHANGED.items()})

    assert header(Settings()) == []
    assert len(header(everything)) == 2
    assert "\n" not in "".join(header(everything._replace(keep_traces="a\nb\x1b" * 400)))
    assert all(len(line) < 2000 for line in header(everything._replace(keep_traces="x" * 3000)))


def test_the_help_of_the_dtypes_lists_all_of_the_table() -> None:
    assert table.BY_NAME["dtype"].help.endswith(f"some of {listing(DTYPES)}")


def test_the_documentation_has_the_tables_of_options_and_of_profiles() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert table.documentation() in page, f"put this into {PAGE}:\n{table.documentation()}"
    assert profiles.documentation() in page, f"put this into {PAGE}:\n{profiles.documentation()}"


def test_the_marker_takes_the_settings_that_the_table_gives_it() -> None:
    marked = {option.field for option in table.OPTIONS if option.marker is not None}

    assert marked == {"timeout", "seed", "accept", "packs"}
    assert set(SETTING_WORDS) == {
        "args",
        "candidate_args",
        "reference",
        "mesh",
        "expect",
        "healthy",
        *marked,
    }
    assert "timeout=300, seed=0, accept=[]" in SIGNATURE


def test_every_help_text_starts_with_a_capital_and_has_no_full_stop() -> None:
    for option in table.OPTIONS:
        assert option.help[0].isupper(), option.name
        assert not option.full_help.endswith("."), option.name


def test_the_help_lists_every_option_in_a_group_of_ours(pytester: pytest.Pytester) -> None:
    lines = pytester.runpytest_inprocess("--help").outlines

    group, found = "", set()
    for line in lines:
        group = line if line and not line.startswith(" ") else group
        if line.startswith("  --trainsafe-"):
            found.add(line.split("=")[0].split()[0])
            assert group.startswith("trainsafe: "), line
    assert found == {option.flag for option in table.OPTIONS}


def test_the_help_of_the_marker_has_short_lines(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest_inprocess("--markers").stdout.str()

    ours = text.partition("@pytest.mark.trainsafe(")[2].partition("\n\n")[0]
    assert "expect_rng(...)" in ours
    assert max(map(len, ours.splitlines())) <= 100
