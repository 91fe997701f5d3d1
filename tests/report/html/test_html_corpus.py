"""Every bug of TTrace, as a failed test, has a page that marks the first wrong tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_trainsafe.reference_models.bugs import BUGS, Bug
from tests.support.report.browser import Look, looking
from tests.support.report.corpus_project import write_corpus
from tests.support.report.shown_runs import run_project

pytestmark = [pytest.mark.processes, pytest.mark.slow]

#: The headings of panels that every failed comparison has.
PANELS = ("Dataflow", "Layers and kinds of tensors", "Dtypes", "Compared tensors")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the page of one run, in which each bug fails at the first Point."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, BUGS)
    result = run_project(folder, "--trainsafe-report=out")
    assert f"{len(BUGS)} failed" in result.stdout, result.stdout[-4000:] + result.stderr
    return folder / "out"


@pytest.fixture(scope="module")
def look(browser, corpus: Path) -> Iterator[Callable[..., Look]]:
    with looking(browser, corpus / "index.html") as open_page:
        yield open_page


@pytest.fixture(scope="module")
def seen(look) -> Look:
    return look()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_page_of_a_bug_marks_its_first_wrong_tensor_and_has_its_panels(
    seen: Look, bug: Bug
) -> None:
    name = f"::test_{bug.name.replace('-', '_')}["
    [nodeid] = [each for each in seen.nodeids() if name in each]
    seen.point(nodeid)
    page = seen.page

    path = f"{bug.module}.{bug.tensor}"
    [first] = page.locator(".node.first").all()
    assert (first.get_attribute("aria-label") or "").startswith(f"{path} · {bug.kind} · ")
    assert page.locator(".heatmap .leads").count() == 1
    assert page.locator("tr.first").first.inner_text().split()[0] == path
    headings = [each.inner_text() for each in page.locator("figure h4").all()]
    assert [each for each in PANELS if each not in headings] == []
    missing = bug.name == "pp-stage-division"  # no rank has the tensor, so it has no values
    assert any(each.startswith("Values: ") for each in headings) != missing
    assert page.locator("tr.marked").count() >= 1
    assert seen.beyond() == []
    assert seen.errors == []


def test_the_causes_of_the_run_name_every_failed_point(seen: Look) -> None:
    seen.point("")
    assert seen.page.locator("section.cause").count() > 1
    assert len(seen.nodeids()) == len(BUGS)
