"""Where a reader finds a page of the documentation, which a wheel does not contain."""

from __future__ import annotations

import functools
import importlib.metadata


def page(name: str) -> str:
    """The address of a page of the documentation: `page("programs.md#random-numbers")`.

    A bare checkout has no metadata to take it from; there it is the page's path.
    """
    return f"{_folder()}/{name}"


@functools.cache
def _folder() -> str:
    try:
        urls = importlib.metadata.metadata("pytest-trainsafe").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        urls = []
    labelled = (url.partition(", ") for url in urls)
    return next((address for label, _, address in labelled if label == "Documentation"), "docs")
