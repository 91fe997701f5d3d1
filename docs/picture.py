"""Draws docs/picture.svg, the picture in the README, from the output of two real pytest runs.

    .venv/bin/python docs/picture.py

The first run is the demo's sweep.  The second trains a copy of docs/examples/own_model without the
all-reduce in the backward of its column-parallel layers; lines that the README does not need are
left out, and the picture says so.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).resolve().parent
WIDTH = 100

#: The line of docs/examples/own_model/model.py without which the gradients are wrong.
FAULT = "        dist.all_reduce(grad, group=ctx.group)\n"

#: What the sweep's picture shows, and the rows of the report that the failure's picture shows.
TABLE = "test_gpt_trains_like_one_device"
ROWS = ("starts at", "pattern", "so", "not affected", "faulty", "axis", "look at", "rerun")


def main() -> None:
    sweep = "docs/examples/test_gpt.py --trainsafe-sweep tp=1,2 cp=1,2"
    lines = [f"$ pytest {sweep}", *table(ran(sweep.split(), DOCS.parent, 0)), ""]
    with tempfile.TemporaryDirectory(prefix="trainsafe-picture-") as temporary:
        folder = Path(temporary, "own_model")
        shutil.copytree(DOCS / "examples" / "own_model", folder)
        Path(temporary, "pytest.ini").write_text("[pytest]\n")
        model = folder / "model.py"
        whole = model.read_text(encoding="utf-8")
        model.write_text(whole.replace(FAULT, ""), encoding="utf-8")
        words = ["own_model", "--trainsafe-sweep", "tp=2", "dp=1"]
        lines += [
            "$ pytest own_model        # without the all-reduce in a backward (shortened)",
            *report(ran(words, Path(temporary), 1)),
        ]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(styled(line), soft_wrap=True)
    console.save_svg(str(DOCS / "picture.svg"), title="pytest-trainsafe", unique_id="trainsafe")


def ran(words: list[str], folder: Path, status: int) -> list[str]:
    """The output of a pytest run in `folder`, which must end with this exit status."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--color=no", "-p", "no:syrupy", *words],
        cwd=folder,
        env={**os.environ, "COLUMNS": str(WIDTH)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != status:
        raise SystemExit(f"pytest {' '.join(words)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout.splitlines()


def table(output: list[str]) -> list[str]:
    """The table of the Points, and the line that counts them."""
    begin = next(n for n, line in enumerate(output) if TABLE in line and "::" in line)
    end = next(n for n, line in enumerate(output) if "points judged" in line)
    return output[begin : end + 1]


def report(output: list[str]) -> list[str]:
    """The first line of the failure's report and the rows in `ROWS`, without pytest's margin."""
    message = [line.removeprefix("E").removeprefix("       ") for line in output if line[:1] == "E"]
    begin = next(n for n, line in enumerate(message) if "differs from its single-device" in line)
    shown = [message[begin].partition("trainsafe: ")[2], ""]
    keep = False
    for line in message[begin + 1 :]:
        name = line[2:16].strip()
        keep = name in ROWS if name else keep
        if keep:
            shown.append(line)
    return shown


def styled(line: str) -> Text:
    """The line, in the colours of a terminal."""
    text = Text(line)
    text.highlight_regex(r"^\$ .*", "bold")
    text.highlight_regex(r"#.*$", "dim")
    text.highlight_regex(r"\bpass\b", "green")
    text.highlight_regex(r"^  [a-z][a-z ]{1,12}(?=  )", "cyan")
    text.highlight_regex(r"an all-reduce over tp is missing[^,]*", "bold red")
    text.highlight_regex(r"\w+\.py:\d+", "yellow")
    return text


if __name__ == "__main__":
    main()
