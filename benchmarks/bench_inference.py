"""Measures how the time to infer invariants grows with the number of records.

The records are those of a synthetic loop with a healthy program's events. Each size is ten times
the previous one; the last has more than 770 000 records. Times are CPU times of `learn` alone, in
one process. The time of a check, which replays the events one by one, is shown as well, except at
the largest size.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

from _measure import ROOT, finish, machine, peak_memory, quick, show

from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.packs.pack import pack_of
from pytest_trainsafe.judges.learn.registry import relations

sys.path.insert(0, str(ROOT))

from tests.support.learn.training_loops import Plan, run_of

#: The numbers of steps of the loop; a step has about 119 records.
STEPS = (65, 650, 6500)


def main() -> None:
    """Measure each size."""
    sizes = STEPS[:2] if quick(__doc__) else STEPS
    facts = machine()
    known = relations()
    figures: list[dict[str, Any]] = []
    for steps in sizes:
        parameters = tuple(f"layer{index}.weight" for index in range(12))
        run = run_of(Plan("growth", steps=steps, layers=6, parameters=parameters))
        begin = time.process_time()
        learned = learn([run])
        spent = time.process_time() - begin
        checked = None
        if steps < STEPS[-1]:
            begin = time.process_time()
            found = check(run, [pack_of("growth", learned)], known)
            checked = time.process_time() - begin
            assert not found.violations
        figures.append(
            {
                "records": run.records,
                "invariants": len(learned.invariants),
                "seconds": round(spent, 3),
                "records_per_second": round(run.records / spent),
                "check_seconds": None if checked is None else round(checked, 3),
                "peak_mib": round(peak_memory()),
            }
        )
    show("Inference, one process", list(figures[0]), [list(each.values()) for each in figures])
    growth = [later["seconds"] / former["seconds"] for former, later in itertools.pairwise(figures)]
    print(
        "\nTen times as many records take",
        ", ".join(f"{each:.1f}" for each in growth),
        "times as long",
    )
    finish("inference", facts, {"sizes": figures, "growth": growth})


if __name__ == "__main__":
    main()
