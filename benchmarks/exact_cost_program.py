"""A reference model whose ranks note the CPU seconds and the memory of their process."""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

from _measure import peak_memory


def train(ctx: Any, module: str, notes: str, arguments: dict[str, Any]) -> None:
    """Trains the reference model `module` with `arguments`.

    Appends a line to the file `notes`: the rung, the process, its CPU seconds before and after, and
    its peak memory in MiB.  Ranks that are threads share a process.
    """
    before = time.process_time()
    importlib.import_module(f"pytest_trainsafe.reference_models.{module}").train(ctx, **arguments)
    line = [ctx._spec.dtype, os.getpid(), before, time.process_time(), peak_memory()]
    with Path(notes).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
