"""What is wrong is in view: tables and charts fit their width, and clues stand at the top."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pytest_trainsafe.report.html.write import write_page
from pytest_trainsafe.report.panels import (
    Code,
    Event,
    Graph,
    HeatMap,
    Line,
    Node,
    Panel,
    Section,
    Series,
    Table,
    Timeline,
)
from tests.support.report.browser import looking
from tests.support.report.documents import document_with

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.processes

MODULES = tuple(f"decoder.layers.{n}.self_attention.linear_qkv" for n in range(40))
KINDS = (
    *("param", "input", "activation", "loss", "activation_grad", "param_grad", "unclipped_grad"),
    *("grad_norm", "main_grad", "update", "optimizer_state"),
)
LANES = (
    *("forward", "backward (activation_grad)", "micro-batch gradient (param_grad)"),
    *("reduced gradient (unclipped_grad, main_grad)", "optimizer", "state"),
)
WIDE: tuple[Panel, ...] = (
    Graph(
        title="Dataflow",
        lanes=LANES,
        rows=MODULES,
        nodes=tuple(
            Node(lane, row, "first" if (lane, row) == (5, 3) else "wrong", 2.5e13)
            for lane in range(6) for row in range(40)
        ),
    ),
    HeatMap(
        title="Layers and kinds of tensors",
        rows=MODULES,
        columns=KINDS,
        values=((2.5e13,) * 10 + ("missing",),) * 40,
        first=(2, 10),
    ),
    Series(
        title="Errors",
        places=MODULES,
        lines=(Line("error", (0, 0, *(1e-3,) * 38)), Line("allowed", (1e-14,) * 40)),
        states=(*("",) * 39, "first"),
    ),
    Table(
        title="Compared tensors",
        columns=(
            *("tensor", "kind", "step", "micro-batch", "error", "allowed", "error ÷ allowed"),
            "pattern",
        ),
        rows=tuple(
            (f"{name}.weight", "param_grad", 0, 1, None, 1e-14, "missing", "it has none there " * 5)
            for name in MODULES[:5]
        ),
        states=("first", *("wrong",) * 4),
    ),
)  # fmt: skip

#: The boxes that scroll sideways, and whether what is first wrong is in view in each.
BOXES = """() => [...document.querySelectorAll(".scroll")]
  .filter((box) => box.scrollWidth > box.clientWidth + 1).map((box) => {
    const lead = box.querySelector(".node.first, .leads");
    const inside = lead && lead.getBoundingClientRect().right <=
      box.getBoundingClientRect().right + 1;
    return [box.ariaLabel, Boolean(inside)];
  })"""


def page_with(folder: Path, section: Section, **first: Any) -> Path:
    document = document_with(("one",))
    [entry] = document.entries
    outcome = replace(entry.outcome, first=replace(entry.outcome.first, **first))
    entry = msgspec.structs.replace(entry, outcome=outcome, sections=(section,))
    return write_page(msgspec.structs.replace(document, entries=(entry,)), folder)


def test_wide_panels_fit_a_usual_window_and_scroll_to_what_is_wrong_in_a_narrow_one(
    browser: Browser, tmp_path: Path
) -> None:
    page = page_with(tmp_path, Section(judge="compare", verdict="fail", panels=WIDE))
    with looking(browser, page) as open_page:
        assert open_page().page.evaluate(BOXES) == []
        narrow = open_page(viewport={"width": 400, "height": 800})
        boxes = dict(narrow.page.evaluate(BOXES))
        assert boxes["Dataflow"]
        assert boxes["Layers and kinds of tensors"]


def test_an_error_of_zero_stands_apart_from_the_logarithmic_axis(
    browser: Browser, tmp_path: Path
) -> None:
    page = page_with(tmp_path, Section(judge="compare", verdict="fail", panels=WIDE))
    with looking(browser, page) as open_page:
        chart = open_page().page.locator("svg.series")
        heights = [float(each.get_attribute("cy") or 0) for each in chart.locator(".dot.c0").all()]
        lowest = max(float(each.get_attribute("y1") or 0) for each in chart.locator(".grid").all())

        assert chart.locator(".zero").text_content() == "exactly 0"
        assert [height > lowest for height in heights] == [True, True, *[False] * 38]
        path = chart.locator("path.c0").get_attribute("d") or ""
        assert (path.count("M"), path.count("L")) == (1, 37)


def test_notes_on_the_modules_at_fault_and_missing_tensors_are_said_at_the_top(
    browser: Browser, tmp_path: Path
) -> None:
    notes = (
        "not compared: what follows from the number calls of the module layers.0.dropout: it is 8",
        "not compared: what follows from the number calls of the module layers.7.other: it is 3",
        "not compared: 44 of the reference's tensors have no counterpart in the candidate",
    )
    section = Section(judge="compare", verdict="fail", panels=WIDE, notes=notes)
    faulty = (("faulty", "the forward of layers.0.dropout"), ("also faulty", "the loss"))
    page = page_with(
        tmp_path, section, where="loss · loss · step 0", facts=faulty, error=None,
        check="replicas", message="rank 1 differs",
    )  # fmt: skip
    with looking(browser, page) as open_page:
        seen = open_page()
        rows = {
            each.locator("xpath=preceding-sibling::dt[1]").inner_text(): each.inner_text()
            for each in seen.page.locator("dl.answers > dd").all()
        }
        assert rows["also seen"].splitlines() == [
            "the number calls of the module layers.0.dropout: it is 8",
            "44 of the reference's tensors have no counterpart in the candidate",
        ]
        assert rows["ranks"] == "rank 1 differs"
        assert rows["first wrong"].startswith("loss · step 0")
        assert rows["also faulty"] == "the loss"
        assert rows["also missing"].startswith("param_grad of decoder.layers.1.")
        assert rows["also missing"].endswith(" and 2 more")
        seen.page.get_by_role("link", name="All points").click()
        assert "rank 1 differs" in seen.page.locator("section.cause").inner_text()
        seen.page.go_back()
        assert "Not compared: 1" in seen.page.locator("#detail").inner_text()
        assert "missing: in one Run only" in seen.page.locator("figure.heat").inner_text()


def test_the_answers_name_a_few_places_and_more_than_eight_states_have_stripes(
    browser: Browser, tmp_path: Path
) -> None:
    code = [
        Code(title=f"Source {n}", file=f"a.py:{n}", first=n, lines=("call()",), marked=n)
        for n in range(1, 10)
    ]
    draws = Timeline(
        title="Draws",
        lanes=("rank 0",),
        events=tuple(Event(0, float(n), 1.0, "draw", f"state {n}") for n in range(12)),
    )
    page = page_with(tmp_path, Section(judge="compare", verdict="fail", panels=(*code, draws)))
    with looking(browser, page) as open_page:
        seen = open_page().page
        places = seen.locator("dl.answers dt:text-is('look at') + dd").inner_text().splitlines()
        assert [line.split()[0] for line in places] == [*(f"a.py:{n}" for n in range(1, 7)), "and"]
        assert places[-1] == "and 3 places below"
        bars = [each.get_attribute("class") for each in seen.locator(".bar").all()]
        assert len(set(bars)) == 12


def test_a_message_that_the_pattern_has_is_said_once(browser: Browser, tmp_path: Path) -> None:
    page = page_with(
        tmp_path, Section(judge="rng", verdict="fail"), where="drop.output", error=None,
        message="ranks draw the same numbers", pattern="ranks draw the same numbers",
    )  # fmt: skip
    with looking(browser, page) as open_page:
        said = open_page().page.locator("dl.answers").inner_text()
        assert said.count("ranks draw the same numbers") == 1
