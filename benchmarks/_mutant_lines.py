"""Finds the lines of a package that a program runs: a program that runs another one in the ranks.

Each rank writes the numbers of the lines that ran into a file.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any


def train(ctx: Any, program: str, folder: str, lines: str, arguments: dict[str, Any]) -> None:
    """Run `program` ("package.module:train") with `arguments`, and write the lines that it ran.

    Only files in `folder` count. The file is `lines` with the rank as its suffix.
    """
    seen: dict[str, set[int]] = {}
    inside = folder + os.sep

    def local(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            seen[frame.f_code.co_filename].add(frame.f_lineno)
        return local

    def enter(frame: FrameType, _event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(inside):
            return None
        seen.setdefault(name, set()).add(frame.f_lineno)
        return local

    threading.settrace(enter)
    sys.settrace(enter)
    try:
        module, _, function = program.partition(":")
        getattr(importlib.import_module(module), function)(ctx, **arguments)
    finally:
        sys.settrace(None)
        threading.settrace(None)
        found = {
            Path(name).relative_to(folder).as_posix(): sorted(numbers)
            for name, numbers in seen.items()
        }
        Path(f"{lines}.{ctx.rank}").write_text(json.dumps(found))
