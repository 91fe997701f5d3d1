"""Replaces one section of a document whose sections several benchmarks write."""

from __future__ import annotations

import re
from pathlib import Path


def write_section(page: Path, name: str, text: str, head: str = "") -> None:
    """Put `text` between `<!-- name -->` and `<!-- /name -->`; a new section is added at the end.

    If the document does not exist, it is created and begins with `head`.
    """
    before = page.read_text(encoding="utf-8") if page.exists() else head
    section = f"<!-- {name} -->\n\n{text.strip()}\n\n<!-- /{name} -->"
    marked = re.compile(rf"<!-- {re.escape(name)} -->.*<!-- /{re.escape(name)} -->", re.DOTALL)
    if marked.search(before):
        after = marked.sub(lambda _: section, before)
    else:
        after = f"{before.rstrip()}\n\n{section}\n"
    page.write_text(after, encoding="utf-8")
