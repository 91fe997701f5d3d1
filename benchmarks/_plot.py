"""The style of all plots, and writing them as SVG: equal figures give equal bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

#: The colour of each dtype in every plot; they differ in lightness too.
DTYPE_COLOURS = {"float64": "#1b4f72", "float32": "#c0392b", "bfloat16": "#e6a117"}

#: The colour of each model.
MODEL_COLOURS = {"gpt": "#1b4f72", "llama": "#c0392b", "moe": "#e6a117"}


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """A figure of `width` by `height` inches and its array of axes, [rows, columns]."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {
            "svg.fonttype": "none",  # text stays text: small files that can be searched
            "svg.hashsalt": "trainsafe",
            "font.size": 8,
            "axes.titlesize": 8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.linewidth": 0.3,
            "legend.frameon": False,
        }
    )
    from matplotlib import pyplot

    return pyplot.subplots(
        rows, columns, figsize=(width, height), squeeze=False, layout="constrained"
    )


def plain_ticks(axis: Any) -> None:
    """Label a logarithmic axis 1, 2, 5, 10, for ranges of a few powers of ten."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(ticker.NullLocator())


def save(figure: Any, folder: Path, name: str) -> None:
    """Write `name`.svg into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.svg"
    figure.savefig(file, metadata={"Date": None})
    # Two decimals of a point are finer than a screen shows, and make the file a third as large.
    file.write_text(re.sub(r"(\d\.\d\d)\d+", r"\1", file.read_text()))
    print(f"drawn: {file}")
