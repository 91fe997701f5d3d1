"""Each failing test may localise for the seconds of the option, a process for ten times that."""

from __future__ import annotations

from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.localize.budget import Budget


def test_one_slow_localisation_leaves_the_next_test_its_full_time() -> None:
    budget = Budget()
    budget.take(60.0)
    assert budget.allows(60.0) == 60.0


def test_a_process_may_take_ten_times_the_limit_of_one_test() -> None:
    budget = Budget()
    for _ in range(9):
        budget.take(60.0)
    budget.take(40.0)
    assert budget.allows(60.0) == 20.0
    budget.take(60.0)
    assert budget.allows(60.0) == 0.0


def test_a_family_whose_search_ran_out_of_time_is_searched_again_only_with_more_time() -> None:
    budget = Budget()
    family = ("fit", "fc1.output")
    assert budget.late(family, 60.0) is None
    budget.ran_out(family, "t.py::first", 60.0)
    assert budget.late(family, 60.0) == "t.py::first"
    assert budget.late(family, 20.0) == "t.py::first"
    assert budget.late(family, 120.0) is None
    assert budget.late(("fit", "fc2.output"), 60.0) is None


def test_a_familys_first_localisation_that_names_faults_is_reused() -> None:
    budget = Budget()
    found = Located((("faulty", "the forward of fc1"),), faults=(("forward", "fc1"),))
    budget.keep(("fit", "fc1.output"), "t.py::first", Located((("not localised", "no time"),)))
    assert budget.known(("fit", "fc1.output")) is None
    budget.keep(("fit", "fc1.output"), "t.py::second", found)
    budget.keep(("fit", "fc1.output"), "t.py::third", found)
    known = budget.known(("fit", "fc1.output"))
    assert known is not None
    assert (known.nodeid, known.located) == ("t.py::second", found)
    assert budget.known(("fit", "fc2.output")) is None
