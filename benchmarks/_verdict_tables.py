"""The tables and the plot of `bench_verdicts.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _measure import show
from _plot import DTYPE_COLOURS, panels, save
from _rungs import DTYPES

Pair = dict[str, Any]

#: The tolerances of `torch.allclose` that TTrace's Table 3 tries: absolute, relative.
CRITERIA = {
    "0, 1e-5": (0.0, 1e-5),
    "1e-8, 1e-5": (1e-8, 1e-5),
    "1e-5, 1e-2": (1e-5, 1e-2),
    "1e-2, 1e-1": (1e-2, 1e-1),
}


def show_verdicts(pairs: Sequence[Pair]) -> None:
    clean = [pair for pair in pairs if not pair["bug"]]
    bugs = [pair for pair in pairs if pair["bug"]]
    columns = ["atol, rtol", "clean Points", "false positives", "tensors", "failing"]
    columns += ["bugs", "missed", "nothing fails"]
    for dtype in DTYPES:
        own = [pair for pair in clean if pair["dtype"] == dtype]
        planted = [pair for pair in bugs if pair["dtype"] == dtype]
        rows = [_row(name, own, planted) for name in (*CRITERIA, "")]
        show(f"Verdicts in {dtype}", columns, rows)
    show_ladders(clean, bugs)
    show_bugs(bugs)
    show_room(clean)


def show_ladders(clean: Sequence[Pair], bugs: Sequence[Pair]) -> None:
    """Print the verdicts of a ladder: a Point fails if it fails in any dtype from float64 down."""
    rows = []
    for last, dtype in enumerate(DTYPES, start=1):
        alarms = _in_any(clean, DTYPES[:last], lambda pair: failures(pair, "") > 0)
        found = _in_any(bugs, DTYPES[:last], lambda pair: not missed(pair, ""))
        named = sorted(name for name, caught in found.items() if not caught)
        rows.append([dtype, len(alarms), sum(alarms.values()), len(found), len(named), *named])
    width = max(map(len, rows))
    columns = ["down to", "clean Points", "false positives", "bugs", "missed"]
    rows = [[*row, *[""] * (width - len(row))] for row in rows]
    columns += [""] * (width - len(columns))
    show("Verdicts by measured tolerances, dtype after dtype from float64", columns, rows)


def _in_any(
    pairs: Sequence[Pair], dtypes: Sequence[str], true: Callable[[Pair], bool]
) -> dict[str, bool]:
    """For each program or bug at its Point, whether `true` holds in one of the dtypes."""
    found: dict[str, bool] = {}
    for pair in pairs:
        if pair["dtype"] in dtypes:
            name = f"{pair['bug'] or pair['program']} at {pair['point']}"
            found[name] = found.get(name, False) or true(pair)
    return found


def _row(name: str, clean: Sequence[Pair], bugs: Sequence[Pair]) -> list[object]:
    """The table row of a criterion; "" stands for the measured tolerances."""
    alarms = [failures(pair, name) for pair in clean]
    tensors = sum(pair["fixed" if name else "ours"]["tensors"] for pair in clean)
    return [
        name or "measured",
        len(clean),
        sum(map(bool, alarms)),
        tensors,
        sum(alarms),
        len(bugs),
        sum(missed(pair, name) for pair in bugs),
        sum(not failures(pair, name) for pair in bugs),
    ]


def failures(pair: Pair, name: str) -> int:
    """The number of tensors of a pair that fail a criterion."""
    found = pair["fixed"]["failed"][name] if name else pair["ours"]["failed"]
    return int(found)


def missed(pair: Pair, name: str) -> bool:
    """Whether a bug's first wrong tensor passes a criterion."""
    return bool(pair["fixed"]["missed"][name] if name else pair["ours"]["missed"])


def show_bugs(bugs: Sequence[Pair]) -> None:
    rows = []
    for name, point in dict.fromkeys((pair["bug"], pair["point"]) for pair in bugs):
        own = {pair["dtype"]: pair for pair in bugs if pair["bug"] == name}
        margins = [_margin(own[dtype]) if dtype in own else "" for dtype in DTYPES]
        passing = (_passing(own[dtype]) if dtype in own else "" for dtype in DTYPES[1:])
        rows.append([name, point, *margins, *passing])
    columns = ["first wrong tensor: error / allowed", "Point", *DTYPES]
    columns += [f"passes in {dtype}" for dtype in DTYPES[1:]]
    show("Planted bugs", columns, rows)


def _margin(pair: Pair) -> str:
    found = pair["ours"]["margin"]
    return "nothing allowed" if found is None else f"{found:.2g}"


def _passing(pair: Pair) -> str:
    return "; ".join(name for name in CRITERIA if missed(pair, name)) or "none"


def show_room(clean: Sequence[Pair]) -> None:
    roundings = list(dict.fromkeys(pair["rounding"] for pair in clean))
    kinds = list(dict.fromkeys(kind for pair in clean for kind in pair["room"]))
    rows: list[list[object]] = []
    for kind in kinds:
        own = ([p["room"].get(kind, 0.0) for p in clean if p["rounding"] == r] for r in roundings)
        rows.append([kind, *(f"{max(ratios):.2f}" for ratios in own)])
    worst = (worst_clean(clean, rounding) for rounding in roundings)
    rows.append(["as judged, updates included", *(f"{ratio:.2f}" for ratio in worst)])
    show(
        "Clean Points, worst error / allowed, by whose rounding is allowed", ["", *roundings], rows
    )


def worst_clean(clean: Sequence[Pair], rounding: str) -> float:
    """The largest ratio of error to allowance of a clean tensor, in pairs that allow `rounding`."""
    return max((pair["ours"]["worst"] for pair in clean if pair["rounding"] == rounding), default=0)


def draw_margins(pairs: Sequence[Pair], folder: Path) -> None:
    """Draw margins.svg: the ratio of error to allowance of the first wrong tensor of each bug."""
    clean = [pair for pair in pairs if not pair["bug"]]
    bugs = [pair for pair in pairs if pair["bug"]]
    names = list(dict.fromkeys(pair["bug"] for pair in bugs))
    figure, ((axis,),) = panels(1, 1, 9, 0.32 * len(names) + 1.6)
    for number, dtype in enumerate(DTYPES):
        own = {pair["bug"]: pair["ours"]["margin"] for pair in bugs if pair["dtype"] == dtype}
        rows = [row for row, name in enumerate(names) if own.get(name) is not None]
        offset, colour = 0.2 * (number - 1), DTYPE_COLOURS[dtype]
        axis.semilogx(
            [own[names[row]] for row in rows],
            [row + offset for row in rows],
            *("o",),
            color=colour,
            ms=5,
            label=dtype,
        )
        worst = worst_clean(clean, dtype)
        axis.axvline(worst, color=colour, lw=1, ls=":", label=f"{dtype}, worst clean tensor")
    for row, name in enumerate(names):
        if all(pair["ours"]["margin"] is None for pair in bugs if pair["bug"] == name):
            axis.text(1.5, row, "nothing is allowed: the tensor is absent", va="center")
    axis.axvline(1, color="black", lw=0.8, ls="--", label="allowed")
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xlabel("error / allowed")
    figure.legend(loc="outside lower center", ncols=4)
    save(figure, folder, "margins")
