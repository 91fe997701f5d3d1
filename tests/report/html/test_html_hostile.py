"""Texts that a program chose are text on the page, whatever they are and wherever they stand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from pytest_trainsafe.report.html.document import read_document
from pytest_trainsafe.report.html.write import write_page
from tests.support.report.browser import Look
from tests.support.report.documents import EMPTY, HOSTILE, document_with

#: How many characters of a text a page must show as they are, in some place.
SHOWN = 30


#: Where the parts of the page are, and how wide.
FRAME = """['top', 'sweep', 'detail'].map((id) => {
  const box = document.getElementById(id).getBoundingClientRect();
  return [box.left, box.width];
})"""


def test_fifty_hostile_texts_in_every_place_run_nothing_and_break_no_layout(
    browser, tmp_path: Path
) -> None:
    assert len(HOSTILE) >= 50
    write_page(document_with(("plain", *HOSTILE)), tmp_path)
    page = browser.new_page(viewport={"width": 1100, "height": 800})
    look = Look(page, tmp_path / "index.html")
    keys = look.nodeids()
    assert len(keys) == len(HOSTILE) + 1
    look.point(next(key for key in keys if key.startswith("plain")))
    parts, plain = page.locator("#detail .panel").count(), page.evaluate(FRAME)

    for key in keys:
        look.point(key)
        assert page.evaluate("window.executed") is None, key
        assert look.beyond() == [], key
        assert page.evaluate(FRAME) == plain, key
        assert page.locator("#detail .panel").count() == parts == 8, key
        assert page.locator("#detail script, #detail style, #detail iframe, base").count() == 0
        shown = page.locator("#detail pre").text_content()
        assert shown.strip()[:SHOWN] == HOSTILE_BY_KEY.get(key, shown).strip()[:SHOWN], key
    assert look.errors == []
    assert {url.partition("#")[0] for url in look.requests} == {look.url}
    page.close()


HOSTILE_BY_KEY = {
    f"{text[:2_000]}::{text[:2_000]}[{number}]": text
    for number, text in enumerate(HOSTILE, 1)
    if not any(c in text for c in "\0\r")  # HTML's parser and the DOM replace these
}


def test_runs_and_panels_with_nothing_in_them_are_shown_without_an_error(
    browser, tmp_path: Path
) -> None:
    document = document_with(("plain",))
    [entry] = document.entries
    section = msgspec.structs.replace(entry.sections[0], panels=EMPTY)
    odd = msgspec.structs.replace(
        entry, sections=(section,), outcome=replace(entry.outcome, axes=())
    )
    for name, entries, panels in (("none", (), 0), ("odd", (odd, odd), len(EMPTY))):
        folder = tmp_path / name
        write_page(msgspec.structs.replace(document, entries=entries), folder)
        page = browser.new_page()
        look = Look(page, folder / "index.html")
        for nodeid in look.nodeids():
            look.point(nodeid)
        assert look.errors == []
        assert page.locator(".panel").count() == panels
        assert page.get_by_text("Settings and versions").count() == 1
        page.close()


def test_the_data_of_a_hostile_page_can_be_read_again(tmp_path: Path) -> None:
    document = document_with(HOSTILE)
    write_page(document, tmp_path)

    assert msgspec.to_builtins(read_document(tmp_path)) == msgspec.to_builtins(document)
