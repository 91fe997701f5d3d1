"""Makes the page from a Document: one file with its styles, scripts and data.

The scripts draw the data, and texts of programs reach the page only as text.  The page's policy
allows these scripts and styles alone, by their hashes, and no network.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from pytest_trainsafe.core.tensor_id import MEANINGS
from pytest_trainsafe.report.html.document import Document
from pytest_trainsafe.report.run.families import Family, families
from pytest_trainsafe.report.run.outcome import Outcome
from pytest_trainsafe.report.run.summary import size, what, where

_ASSETS = Path(__file__).parent / "assets"

#: The scripts, in the order in which they are joined.
_SCRIPTS = ("dom", "tables", "drawings", "maps", "sweep", "point", "start")

#: The most Points that the list without scripts names.
_MOST_LISTED = 2_000


def page_of(document: Document) -> str:
    """The page, as HTML."""
    script, style = _assets()
    causes = families([entry.outcome for entry in document.entries])
    verdicts = [entry.outcome.verdict for entry in document.entries]
    count = {each: verdicts.count(each) for each in dict.fromkeys(verdicts)}
    template = _environment().get_template("page.html.j2")
    return template.render(
        title=_title(count, len(verdicts)),
        script=script,
        style=style,
        script_hash=_hash(script),
        style_hash=_hash(style),
        data=_inline(
            {"document": document, "families": _families(document, causes), "kinds": MEANINGS}
        ),
        listed=[entry.outcome for entry in document.entries[:_MOST_LISTED]],
    )


def _title(count: dict[str, int], points: int) -> str:
    failed = sum(count.get(each, 0) for each in ("fail", "error", "inconclusive"))
    said = f"{failed} of {points} points do not pass" if failed else f"{points} points pass"
    return f"trainsafe: {said}"


def _families(document: Document, causes: list[Family]) -> list[dict[str, Any]]:
    """The families for the page: their members, by the indices of entries, and what they share."""
    index: dict[tuple[str, str], list[int]] = {}
    for number, entry in enumerate(document.entries):
        index.setdefault((entry.outcome.nodeid, entry.outcome.point), []).append(number)
    return [
        {
            "members": [n for each in family.members for n in index[_key(each)]],
            "lead": index[_key(family.lead)][0],
            "what": what(family.lead),
            "where": where(family),
            "size": size(family.lead),
            "pattern": family.lead.first.pattern,
            "cause": family.lead.first.cause,
            "points": family.points[:2_000],
        }
        for family in causes
    ]


def _key(outcome: Outcome) -> tuple[str, str]:
    return outcome.nodeid, outcome.point


def _inline(data: object) -> str:
    """JSON that may stand in a script element: no text in it ends the element or begins a comment.

    The characters that JSON allows and old scripts do not are escaped too.
    """
    text = msgspec.json.encode(data).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _assets() -> tuple[str, str]:
    """The script and the style of the page."""
    parts = [(_ASSETS / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS]
    script = "\n".join(['"use strict";', "(() => {", *parts, "})();"])
    return script, (_ASSETS / "page.css").read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _hash(text: str) -> str:
    """The hash by which a content security policy allows an inline script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
