"""The page of real runs in a browser: every panel, by keyboard, by name, in every window."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pytest_trainsafe.report.html.document import INFINITE
from pytest_trainsafe.report.html.write import write_page
from pytest_trainsafe.report.panels import Code, Section, Table
from tests.support.report.browser import Look, looking
from tests.support.report.documents import document_with

pytestmark = pytest.mark.processes

UNREDUCED = "test_shown.py::test_unreduced[tp2-sp-float64]"
FIRST = "decoder.final_layernorm.weight · param_grad · step 0 · micro-batch 0"


@pytest.fixture
def look(browser, shown: Path) -> Iterator[Callable[..., Look]]:
    """Opens the page of real runs."""
    with looking(browser, shown / "index.html") as open_page:
        yield open_page


def texts(look: Look, selector: str) -> list[str]:
    return [each.inner_text().replace("\n", " ") for each in look.page.locator(selector).all()]


def test_the_sweep_is_a_matrix_and_failures_have_the_letter_of_their_family(look) -> None:
    seen = look()
    seen.point(UNREDUCED)

    assert texts(seen, ".matrix thead th") == ["tp=1", "tp=2"]
    cells = [each.get_attribute("aria-label") for each in seen.page.locator(".point").all()]
    assert cells == ["tp=1 sp=False: pass", "tp=2 sp=False: pass", cells[2]]
    assert cells[2].startswith("tp=2 sp=True: fail, cause ")
    assert "fails where sp=True; 2 other points pass" in " ".join(texts(seen, ".families"))
    seen.page.get_by_label("columns").select_option("sp")
    assert texts(seen, ".matrix thead th") == ["sp=False", "sp=True"]


def test_a_failing_point_shows_where_the_error_starts_and_what_it_is(look) -> None:
    seen = look()
    seen.point(UNREDUCED)
    page = seen.page

    assert (
        page.locator(".node.first").get_attribute("aria-label").startswith(f"{FIRST}, first wrong")
    )
    assert page.locator(".node.pale").count() > 20
    assert "first wrong" in page.locator(".heatmap .leads").inner_text()
    assert page.locator("svg.series text.flag").first.text_content() == "first wrong"
    values = page.locator(f'figure.maps[data-anchor="{FIRST}"]')
    assert texts(seen, f'figure.maps[data-anchor="{FIRST}"] .map-name') == [
        *("candidate", "reference", "difference")
    ]
    assert values.locator("svg.borders rect").count() == 2
    held = page.get_by_role("heading", name="What each rank holds")
    assert held.count() == 1
    assert "sum: rank 0 + rank 1" in " ".join(texts(seen, ".map-name"))
    assert page.get_by_role("heading", name="Elements that differ most").count() == 1
    assert "class SequenceParallelLayerNorm" in page.locator("tr.marked").inner_text()
    assert texts(seen, "dl.answers dt") == [
        *("finding", "first wrong", "error", "pattern", "so", "axis", "look at")
    ]
    assert texts(seen, ".point-head + dl.answers dd")[5].startswith("tp, by the pattern")
    look_at = texts(seen, "dl.answers dt:text-is('look at') + dd > div")[0]
    line = page.locator("tr.marked td.line").first.inner_text().split()[-1]
    assert f":{line} class SequenceParallelLayerNorm" in look_at
    held = page.get_by_role("heading", name="Collectives of the steps")
    assert held.count() == 1
    top = page.locator("dl.answers").bounding_box()
    assert top is not None
    assert top["y"] + top["height"] < 600  # within the window
    assert page.locator("details.message:not([open])").count() == 1
    assert [each.split(" ")[0] for each in texts(seen, "figure h4")[:2]] == ["Source:", "Dataflow"]
    assert f"rerun pytest '{UNREDUCED}'" in " ".join(texts(seen, "dl.facts")).replace("\n", " ")


def test_a_test_that_is_chosen_and_a_cause_that_is_followed_show_its_head(look) -> None:
    seen = look()
    seen.page.locator(".tests select").focus()
    seen.page.locator(".tests select").select_option("test_shown.py::test_mask")
    seen.page.wait_for_timeout(30)
    assert "test_mask" in seen.page.locator(".point-head").inner_text()
    assert "def forward(" in seen.page.locator("tr.marked").first.inner_text()
    assert seen.page.evaluate("document.activeElement.tagName") == "SELECT"
    seen.page.locator(".tests select").select_option("test_shown.py::test_unreduced")
    seen.page.wait_for_timeout(30)
    assert UNREDUCED in seen.page.locator(".point-head").inner_text()
    seen.page.get_by_role("link", name="All points").click()
    cause = seen.page.locator("section.cause a").last
    cause.scroll_into_view_if_needed()
    cause.click()
    seen.page.wait_for_timeout(30)
    top = seen.page.locator(".point-head").bounding_box()
    assert top is not None
    assert 0 <= top["y"] <= 300


def test_the_pointer_reads_the_indices_of_the_tensor(look) -> None:
    seen = look()
    seen.point("test_shown.py::test_mask[tp2-float64]")
    frame = seen.page.locator("figure.maps .map-frame").first
    frame.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        seen.page.keyboard.press(key)

    # The tensor has three dimensions, of which the first two are the rows of the picture.
    assert seen.page.locator("figure.maps output.read").first.inner_text().startswith("[0, 1, 2]")


def test_a_page_with_one_failure_opens_at_it_and_shows_its_facts(browser, tmp_path: Path) -> None:
    [failed] = document_with(("one",)).entries
    first = replace(
        failed.outcome.first, pattern="", cause="", allowed=0.0, facts=(("axis", "tp, alone"),)
    )
    outcome = replace(failed.outcome, worst=INFINITE, first=first)
    passed = replace(failed.outcome, nodeid="passed", verdict="pass")
    entries = [msgspec.structs.replace(failed, outcome=each) for each in (outcome, passed)]
    document = msgspec.structs.replace(document_with(("one",)), entries=tuple(entries))
    write_page(document, tmp_path)
    with looking(browser, tmp_path / "index.html") as open_page:
        seen = open_page()

        head = seen.page.locator(".point-head + dl.facts").inner_text()
        assert "one::one[0]" in seen.page.locator(".point-head").inner_text()
        for said in ("the values must be equal", "no pattern fits", "tp, alone"):
            assert said in head
        assert texts(seen, "#points .number") == ["≠"]
        seen.page.get_by_role("link", name="All points").click()
        cause = seen.page.locator("section.cause").inner_text()
        for said in ("the values must be equal", "no pattern fits", "tp, alone"):
            assert said in cause


def test_a_link_to_a_tensor_shows_and_focuses_it(look) -> None:
    seen = look()
    seen.point(UNREDUCED, "embedding.word_embeddings.output · activation · step 0 · micro-batch 1")

    target = seen.page.locator("tr.target")
    assert target.count() == 1
    assert "embedding.word_embeddings.output" in target.inner_text()
    assert seen.page.evaluate("document.activeElement.classList.contains('target')")
    top = target.bounding_box()
    assert top is not None
    assert 0 <= top["y"] <= 900


def test_clean_points_show_what_was_compared_and_how_close_it_came(look) -> None:
    seen = look()
    closest = seen.page.get_by_role("region", name="Closest")
    assert closest.locator("tbody tr").count() >= 7
    seen.point("test_shown.py::test_clean[tp2-cp2-float64]")

    assert "of what is allowed" in " ".join(texts(seen, "dl.facts"))
    assert seen.page.locator(".node").count() > 30
    assert seen.page.locator(".node.first, .node.wrong").count() == 0
    assert seen.page.get_by_role("heading", name="Dtypes").count() == 1


@pytest.mark.parametrize(
    ("nodeid", "marked", "said"),
    [
        ("test_drops[dp2-float64]", ".bar.first", "bernoulli"),
        ("test_hang", ".bar.first", "barrier"),
        ("test_resumed[dp2]", ".bar.first", "loads, then step 4"),
        ("test_proof[tp2]", ".facts-table", "62 tensors are equal, without rounding"),
        ("test_refutation[tp2]", ".node.first", "first wrong"),
        ("test_graphs", ".rows", "concat 1 over tp"),
        ("test_mask[tp2-float64]", ".node.first", "first wrong"),
    ],
)
def test_each_judge_shows_its_panels(look, nodeid: str, marked: str, said: str) -> None:
    seen = look()
    seen.point(f"test_shown.py::{nodeid}")

    assert said in " ".join(texts(seen, marked))
    assert "no panels" not in seen.page.locator("#detail").inner_text()


def test_the_line_that_seeds_has_the_seeds_of_all_ranks(look) -> None:
    seen = look()
    seen.point("test_shown.py::test_drops[dp2-float64]")

    said = " ".join(texts(seen, "#detail"))
    assert re.search(r"seeds torch cpu, with seed \d+ on rank 0 and seed \d+ on rank 1", said)


def test_the_keyboard_alone_reaches_everything_and_shows_where_it_is(look) -> None:
    seen = look()
    page = seen.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "detail"
    page.get_by_label("test", exact=False).first.select_option("test_shown.py::test_unreduced")
    page.locator(".point").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.ariaLabel").startswith("tp=2 sp=True")
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.id === 'detail'")

    reached = []
    for _ in range(120):
        page.keyboard.press("Tab")
        at = page.evaluate(
            """() => {
              const at = document.activeElement;
              const { outlineStyle, outlineWidth } = getComputedStyle(at);
              return [at.tagName, at.className, outlineStyle !== "none" && outlineWidth !== "0px"];
            }"""
        )
        if at[0] == "BODY":
            break
        assert at[2], at
        reached.append(f"{at[0]}.{at[1]}")
    assert {"SUMMARY.", "DIV.scroll", "DIV.map-frame"} <= set(reached)
    assert any(each.startswith("BUTTON.node") for each in reached)
    page.locator(".map-frame").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".read").first.inner_text().startswith("[1] ")


def test_a_screen_reader_has_a_name_for_everything(look) -> None:
    seen = look()
    for nodeid in (UNREDUCED, "test_shown.py::test_hang"):
        seen.point(nodeid)
        tree = seen.page.context.new_cdp_session(seen.page).send("Accessibility.getFullAXTree")
        named = {"button", "link", "combobox", "img", "image", "region", "checkbox", "heading"}
        nodes = [n for n in tree["nodes"] if n.get("role", {}).get("value") in named]
        nameless = [n["role"]["value"] for n in nodes if not n.get("name", {}).get("value", "")]

        assert len(nodes) > 10
        assert nameless == []


CONTRAST = """() => {
  const numbers = (text) => (text.match(/[0-9.]+/g) || []).map(Number);
  const part = (c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const low = [];
  for (const each of document.querySelectorAll("body *")) {
    const own = [...each.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !each.getClientRects().length || each.closest(".away, .skip, select")) continue;
    const style = getComputedStyle(each);
    const ink = each.namespaceURI.includes("svg") ? style.fill : style.color;
    let ground = each;
    let found = null;
    while (ground) {
      const colour = getComputedStyle(ground).backgroundColor;
      if (!/, 0\\)$/.test(colour) && colour !== "transparent") { found = colour; break; }
      ground = ground.parentElement;
    }
    const [a, b] = [light(numbers(ink)), light(numbers(found || "rgb(255, 255, 255)"))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) low.push(`${each.tagName}.${each.className} ${contrast.toFixed(2)} ${ink}`);
  }
  return [...new Set(low)];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_the_contrast_that_readers_need(look, scheme: str) -> None:
    seen = look(color_scheme=scheme)
    low = [*seen.page.evaluate(CONTRAST)]
    for nodeid in (UNREDUCED, "test_shown.py::test_drops[dp2-float64]", "test_shown.py::test_hang"):
        seen.point(nodeid)
        low += seen.page.evaluate(CONTRAST)

    assert sorted(set(low)) == []


@pytest.mark.parametrize("width", [340, 700, 1280])
def test_nothing_reaches_beyond_a_window_of_any_width(look, width: int) -> None:
    seen = look(viewport={"width": width, "height": 800})
    assert seen.beyond() == []
    for nodeid in seen.nodeids():
        seen.point(nodeid)
        assert seen.beyond() == [], nodeid


def test_a_point_can_be_printed_with_all_that_is_folded(look) -> None:
    seen = look()
    seen.point(UNREDUCED)

    assert len(seen.page.pdf()) > 50_000
    assert seen.page.locator("details:not([open])").count() == 0
    seen.page.emulate_media(media="print", color_scheme="dark")
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    assert seen.page.evaluate(paper) == "rgb(255, 255, 255)"
    assert not seen.page.locator(".controls").first.is_visible()


def test_a_sentence_is_said_once_and_lines_show_what_they_have_to_do_with_the_fault(
    browser, tmp_path: Path
) -> None:
    said = "each cell is the element of its block that differs most"
    code = Code(
        title="Source: look here first", file="a.py:2", first=1, marked=2, also=(3,), steps=(1,),
        lines=("if tp > 1:", "    reduce()", "    wait()", "else:", "    skip()"), idle=(5,),
        note=f"short; {said}", runs="runs in the candidate",
    )  # fmt: skip
    table = Table(title="Values", rows=(("a", 1),), note=f"short; {said}")
    section = Section(judge="compare", verdict="fail", panels=(code, table), notes=(said, "more"))
    [failed] = document_with(("one",)).entries
    outcome = replace(failed.outcome, arguments="tp_overlap=True, layers=2")
    entry = msgspec.structs.replace(failed, outcome=outcome, sections=(section,))
    write_page(msgspec.structs.replace(document_with(("one",)), entries=(entry,)), tmp_path)
    with looking(browser, tmp_path / "index.html") as open_page:
        seen = open_page()
        detail = seen.page.locator("#detail")

        assert (detail.text_content() or "").lower().count(said) == 1
        assert "Not compared: 1" in detail.inner_text()
        assert "tp_overlap=True, layers=2" in texts(seen, ".point-head ~ dl.facts")[1]
        for kind, number in (("marked", "2"), ("also", "3"), ("steps", "1"), ("idle", "5")):
            assert texts(seen, f".source tr.{kind} .line")[0].split()[-1] == number
        assert "runs in the candidate" in texts(seen, "figure.code p.file")[0]
        assert "pale text: did not run" in detail.inner_text()
        struck = "getComputedStyle(document.querySelector('.idle code')).textDecorationLine"
        assert seen.page.evaluate(struck) == "none"
