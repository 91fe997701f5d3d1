"""A benchmark writes only its own section of a document."""

from __future__ import annotations

from pathlib import Path


def test_writing_a_section_leaves_other_sections_unchanged(tmp_path: Path) -> None:
    from _page import write_section

    page = tmp_path / "page.md"
    write_section(page, "one", "first", head="# Title\n")
    write_section(page, "two", r"a \1 | b", head="# Another title\n")
    write_section(page, "one", "again\n")

    assert page.read_text() == (
        "# Title\n\n<!-- one -->\n\nagain\n\n<!-- /one -->\n\n"
        "<!-- two -->\n\na \\1 | b\n\n<!-- /two -->\n"
    )
