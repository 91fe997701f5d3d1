"""A Chromium without a window, in which tests look at pages.

Debian's and Ubuntu's package `chromium`, Google's Chrome, or the one that
`python -m playwright install chromium` downloads.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome")


#: Changes the address, and waits until the page has shown what it names.
SHOW = """([point, tensor]) => new Promise((resolve) => {
  const before = location.hash;
  addEventListener("hashchange", resolve, { once: true });
  const named = { point, tensor };
  location.hash = Object.keys(named).filter((key) => named[key])
    .map((key) => `${key}=${encodeURIComponent(named[key])}`).join("&");
  if (location.hash === before) resolve();
})"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; skips the test if there is none, or no client for it."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        path = next(filter(None, map(shutil.which, _NAMES)), str(own) if own.exists() else None)
        if path is None:
            pytest.skip("no Chromium is installed: apt-get install chromium")
        # Chromium's sandbox refuses to run as root, as in a container.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser: Browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def looking(browser: Browser, page: Path) -> Iterator[Callable[..., Look]]:
    """Opens a page of a run, also several times, with options of the browser's window.

    At the end, checks that the page asked for nothing and had no errors.
    """
    opened: list[Look] = []

    def open_page(**options: object) -> Look:
        given: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, **options}
        opened.append(Look(browser.new_page(**given), page))
        return opened[-1]

    yield open_page
    for each in opened:
        assert each.errors == []
        assert {url.partition("#")[0] for url in each.requests} == {each.url}
        each.page.close()


class Look:
    """An open page, with what went wrong in it: `errors`, and `requests` beside its own file."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page, self.url = page, path.absolute().as_uri()
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.errors.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}"))
        page.goto(self.url)

    def point(self, nodeid: str, tensor: str = "") -> None:
        """Shows a Point, by its address."""
        self.page.evaluate(SHOW, [nodeid, tensor])

    def nodeids(self) -> list[str]:
        """The node ids of all Points, in the order of the page."""
        found: list[str] = self.page.evaluate(
            "JSON.parse(document.getElementById('data').textContent)"
            ".document.entries.map(each => each.outcome.nodeid)"
        )
        return found

    def beyond(self) -> list[str]:
        """Elements that reach beyond the window, except inside of boxes that scroll."""
        found: list[str] = self.page.evaluate(
            """() => {
              const wide = document.documentElement.clientWidth;
              const found = document.documentElement.scrollWidth > wide ? ["the page"] : [];
              for (const each of document.querySelectorAll("body *")) {
                if (each.closest(".scroll, .map-frame, pre, .away, .skip, noscript, script, svg"))
                  continue;
                const box = each.getBoundingClientRect();
                if (box.width && (box.right > wide + 1 || box.left < -1))
                  found.push(`${each.tagName}.${each.className}: ${box.left}..${box.right}`);
              }
              return found.slice(0, 5);
            }"""
        )
        return found
