"""Keeps the exception of a test that a benchmark runs in its own process."""

from __future__ import annotations

from typing import Any

import pytest


class Recorder:
    """Keeps the exception of the test, as a pytest plugin."""

    error: BaseException | None = None

    def pytest_exception_interact(self, call: pytest.CallInfo[Any]) -> None:
        if call.excinfo is not None:
            self.error = call.excinfo.value
