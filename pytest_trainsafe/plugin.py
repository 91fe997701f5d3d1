"""The pytest plugin: each hook calls the module that implements it.

pytest loads this module in every run of an environment with pytest-trainsafe installed, so it
must not import torch, numpy or any other slow module at the top.  Hooks that only trainsafe tests
need import their implementation when they are called.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from pytest_trainsafe import hooks
from pytest_trainsafe.config.options import add_options, separate_sweep_words
from pytest_trainsafe.config.read import read_settings, require_encodable_folders, sweep_words
from pytest_trainsafe.config.settings import SETTINGS, WORKER_SWEEP
from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.fixtures.core import (
    _trainsafe_cell,
    cache_folder,
    candidate_trace,
    reference_trace,
    run_folder,
    torchrun_group,
    trainsafe,
)
from pytest_trainsafe.printable import printable
from pytest_trainsafe.report.run.end import conclude
from pytest_trainsafe.runs import early_start, interrupt
from pytest_trainsafe.sweep.signature import FUZZING, HELP, MARKER, param_marks

__all__ = [
    "_trainsafe_cell",
    "candidate_trace",
    "reference_trace",
    "torchrun_group",
    "trainsafe",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the command-line options and their ini values."""
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Adds the hook specifications of `hooks.py`."""
    pluginmanager.add_hookspecs(hooks)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Separates the words of `--trainsafe-sweep` from the paths on the command line."""
    separate_sweep_words(early_config, args)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker and reads the settings."""
    config.addinivalue_line("markers", HELP)
    settings = config.stash[SETTINGS] = read_settings(config)
    if settings.report:
        from pytest_trainsafe.report.html.extra import require_extra

        require_extra()
    config.pluginmanager.register(interrupt.Interrupt(config), interrupt.NAME)
    if settings.init:
        from pytest_trainsafe.init.hooks import Init

        config.pluginmanager.register(Init(), "trainsafe_init")
    if settings.debug is not None:
        from pytest_trainsafe.runs.progress.terminal import lend_terminal

        lend_terminal(config)
    if settings.plan or settings.shard is not None:
        from pytest_trainsafe.sweep.plan.select import register

        register(config, cache_folder(config))


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Turns pytest-xdist off if `--trainsafe-plan` or `--trainsafe-init` is given.

    One process then writes the plan of all tests, or the first test of a program, and runs none.
    """
    if config.getoption("trainsafe_plan") or config.getoption("trainsafe_init"):
        from pytest_trainsafe.sweep.plan.select import run_in_one_process

        run_in_one_process(config)
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Sends a pytest-xdist worker the sweep, and the folder in which it reports progress."""
    from pytest_trainsafe.runs.progress.shared import share_folder

    words, from_ini = sweep_words(node.config)
    node.workerinput[WORKER_SWEEP] = {"words": words, "from_ini": from_ini}
    share_folder(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Shows the network's risk and the progress of Points, once a worker has trainsafe tests."""
    from pytest_trainsafe.report.run.live_workers import name_risk, start_for_workers
    from pytest_trainsafe.report.run.order import keep_order

    keep_order(node.config, ids)
    name_risk(node.config)
    start_for_workers(node.config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Prepares to start the fork server while the test modules are imported."""
    early_start.watch(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrizes marked tests over the Points of their sweep."""
    if metafunc.definition.get_closest_marker(MARKER) or param_marks(metafunc.definition):
        from pytest_trainsafe.sweep.collect import parametrize

        parametrize(metafunc)
        early_start.collected(metafunc)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, object, object]:
    """Keeps, for each parameter set with a marker of its own, only the Points of that marker."""
    made = yield
    if isinstance(made, list) and "pytest_trainsafe.sweep.collect" in sys.modules:
        from pytest_trainsafe.sweep.collect import choose

        return choose(made)
    return made


def pytest_exception_interact(
    call: pytest.CallInfo[Any], report: pytest.CollectReport | pytest.TestReport
) -> None:
    """Explains the collection error of a marker without keywords (`sweep/bare_marker.py`)."""
    if isinstance(report, pytest.CollectReport) and call.excinfo is not None:
        from pytest_trainsafe.sweep.bare_marker import explanation

        if text := explanation(call.excinfo.tb):
            report.sections.append((MARKER, printable(text)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Checks the sweep once all tests are collected; notes skipped Points for the summary."""
    if _in_use(session.config):
        from pytest_trainsafe.runs.progress.shared import announce
        from pytest_trainsafe.sweep.collect import finish

        announce(session.config)
        finish(session, items)
        early_start.expect_imports()
        require_encodable_folders(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Starts to show the progress of running Points, before pytest begins to capture output."""
    if _in_use(session.config):
        from pytest_trainsafe.report.run.live import start

        # Modules stay until the end: with torch half a million objects, which the collector need
        # not visit.  pytest collects five times when it ends.
        gc.freeze()
        start(session.config)
    early_start.resume_collector()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Notes the next test, whose Runs may be launched during this one."""
    if item.config.stash[SETTINGS].report:
        from pytest_trainsafe.report.sections import begin

        begin()
    if _in_use(item.config):
        from pytest_trainsafe.runs.ahead import look

        look(item, nextitem)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Prepares a fuzz test; warns if a test compared nothing; reports what was replayed."""
    try:
        with _fuzzing(item):
            result = yield
    finally:
        if item.config.stash[SETTINGS].replay is not None:
            from pytest_trainsafe.judges.replay.checkpoints.runs.replays import attach_notes

            attach_notes(item)
    if _in_use(item.config):
        from pytest_trainsafe.runs.unused_traces import warn_if_unused

        warn_if_unused(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Says in one line why a test fails, adds the output of its ranks, and stores its report."""
    error = call.excinfo.value if call.excinfo is not None else None
    ours = error is not None and (_in_use(item.config) or isinstance(error, TrainsafeError))
    folder = run_folder(item.config)
    shown = bool(item.config.stash[SETTINGS].report)
    if not ours and not shown and folder is None:  # no ranks have been started
        return (yield)
    from pytest_trainsafe.report.run.failing import (
        attach_findings,
        shorten_line,
        store,
        tell_once,
    )
    from pytest_trainsafe.report.run.frames import hidden
    from pytest_trainsafe.report.run.rank_output import add_output

    tell_once(item, call)
    with hidden(item.config, call.excinfo, in_test=call.when == "call"):
        report = yield
    add_output(item, call, report)
    shorten_line(item, error, report)
    attach_findings(error, report)
    store(item, report, folder)
    if shown:
        from pytest_trainsafe.report.html.shown import attach_sections

        attach_sections(error, report)
    return report


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The header lines: settings that differ from their defaults."""
    from pytest_trainsafe.config.header import header

    return header(config.stash[SETTINGS])


def pytest_report_collectionfinish(
    config: pytest.Config, items: Sequence[pytest.Item]
) -> str | None:
    """The number of collected and skipped Points, and the network of the ranks.

    None if errors of the collection keep them from running.
    """
    reporter = config.pluginmanager.getplugin("terminalreporter")
    stopped = reporter.stats.get("error") and not config.option.continue_on_collection_errors
    if stopped or not _in_use(config):
        return None
    from pytest_trainsafe.config.header import network
    from pytest_trainsafe.sweep.collect import counts

    line = counts(items)
    return line and printable(f"{line}, {network(config.stash[SETTINGS])}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Writes the terminal summary and the reports for GitHub Actions."""
    conclude(terminalreporter, cache_folder(terminalreporter.config))


def _in_use(config: pytest.Config) -> bool:
    """Whether a marked test has been collected, or the settings contain a sweep."""
    return "pytest_trainsafe.sweep.collect" in sys.modules or bool(config.stash[SETTINGS].sweep)


def _fuzzing(item: pytest.Item) -> AbstractContextManager[None]:
    """The context in which a test made by `trainsafe_fuzz` runs; an empty one for other tests."""
    fuzzing = getattr(getattr(item, "obj", None), FUZZING, None)
    return fuzzing(item) if fuzzing is not None else nullcontext()
