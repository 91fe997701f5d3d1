"""The first contact with a program: trains it, prints the checklist, writes the first test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_trainsafe.config.settings import SETTINGS, Settings
from pytest_trainsafe.core.code_files import PACKAGE, is_installed, relative
from pytest_trainsafe.core.pages import page
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.table import WIDEST
from pytest_trainsafe.init.axes import axes_of
from pytest_trainsafe.init.checklist import Check, Seen, checklist
from pytest_trainsafe.init.files import create, path_of_test, text_of_test
from pytest_trainsafe.init.points import LayoutFile, tried
from pytest_trainsafe.init.program import Found, module_of
from pytest_trainsafe.init.trial import try_out
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.launch.failure import headline, raised_at
from pytest_trainsafe.report.rows import WIDTH, wrap, write_lines
from pytest_trainsafe.runs import interrupt
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.product import cell_of

#: The widths of a row's mark and of its label.
_MARK, _LABEL = 7, 15

#: The most lines of a traceback that are shown.
_TRACEBACK = 20


def first_contact(config: pytest.Config, found: Found) -> bool:
    """Prints the checklist of a program, and writes its first test.

    Returns whether nothing lacks and the test was written.
    """
    settings = config.stash[SETTINGS]
    with tempfile.TemporaryDirectory(prefix="trainsafe-init-") as base:
        session = Session(_settings(settings), Path(base), Path(base) / "cache")
        plugin = config.pluginmanager.getplugin(interrupt.NAME)
        assert isinstance(plugin, interrupt.Interrupt)
        plugin.stop = session.stop_runs
        try:
            return _Contact(config, session, found).make()
        finally:
            session.close()


def _settings(settings: Settings) -> Settings:
    """The settings of this run, to judge in float64 without looking for the code at fault."""
    return settings._replace(
        sweep=(),
        dtypes=(WIDEST,),
        record="full",
        record_kinds=(),
        record_modules=("*",),
        rng=True,
        localize=0.0,
        annotate="",
        keep_traces="",
        no_cache=False,
        packs=(),
        learn="",
        replay=None,
    )


def _testpaths(config: pytest.Config) -> list[Path]:
    """The folders from which pytest collects if none is given; empty for the working directory."""
    folders: list[str] = config.getini("testpaths")
    return [config.rootpath / folder for folder in folders]


class _Contact:
    """One call of the option, and the terminal that it writes to."""

    def __init__(self, config: pytest.Config, session: Session, found: Found) -> None:
        self.config = config
        self.session = session
        self.found = found
        self.folder = config.invocation_params.dir
        self.reporter = config.pluginmanager.getplugin("terminalreporter")

    def make(self) -> bool:
        """Trains, prints and writes; returns whether nothing lacks and the test was written."""
        program = self.found.declaration.program
        self._lines("", f"trainsafe: trains {self.found.name} on one device", "")
        alone = Point((), program.traits.mesh)
        case = cell_of(self.found.declaration, alone, self.session.settings, ()).case
        try:
            trial = try_out(self.session, case)
        except GroupFailure as failure:
            self._failed(failure)
            return False
        axes = axes_of(trial.trace, self.found.file)
        self._rows(rows := checklist(Seen(self.found, trial, axes)))
        if trial.dtype != WIDEST:
            self.session.settings = self.session.settings._replace(dtypes=(trial.dtype,))
        layouts = LayoutFile.of(trial, self.found, self.folder)
        points = []
        for row in tried(self.session, self.found, trial, axes, self.config, layouts):
            self._rows([row])
            points.append(row)
        rows += points
        path = path_of_test(self.found, self.folder, _testpaths(self.config))
        text = text_of_test(self.found, axes, path)
        written = self._write(path, text, layouts)
        lacking = [row for row in rows if row.mark == "lacks"]
        annotate = any(row.mark != "ok" for row in points) and (
            layouts.own or layouts.read or bool(layouts.wanted)
        )
        self._next(path, annotate, lacking)
        return written and not lacking

    def _rows(self, rows: Iterable[Check]) -> None:
        indent = " " * (2 + _MARK + _LABEL)
        for row in rows:
            more = f"to do: {row.todo}" if row.todo else ""
            lines = wrap(row.text, WIDTH - len(indent))
            lines += wrap(more, WIDTH - len(indent), indent="  ") if more else []
            lines += [f"see:   {page(row.page)}"] if row.page else []
            first, *others = lines
            self._lines(
                f"  {row.mark:<{_MARK}}{row.label:<{_LABEL}}{first}",
                *(indent + line for line in others),
            )

    def _failed(self, failure: GroupFailure) -> None:
        """Prints why the program cannot be trained on one device, and what to do."""
        result, program = failure.result, self.found.declaration.program
        rank = result.ranks[0]
        place = relative(raised_at(result))
        ours = is_installed(place) or Path(place.rpartition(":")[0]).is_relative_to(PACKAGE)
        text = headline(result) if rank.status != "raised" else f"{rank.error_type}: {rank.error}"
        self._rows(
            [Check("lacks", "program", text if ours or not place else f"{text}, at {place}")]
        )
        own = not ours and rank.status == "raised"
        if own:
            trace = rank.traceback.splitlines()[-_TRACEBACK:]
            self._lines("", *(f"    {line}" for line in trace))
        advice = []
        if "never called ctx.step" in rank.error:
            advice.append(
                "besides, a program calls ctx.initialize(model) before it makes the optimizer, "
                "ctx.watch(model, optimizer) before the first step, and ctx.loss(loss) in each "
                "micro-batch"
            )
        if program.script is not None and "ctx.step" in rank.error:
            module = module_of(self.found.file, self.folder)
            advice.append(
                "a script gets ctx by `ctx = pytest_trainsafe.context()`; to train a function of "
                f"this file, give {module}:FUNCTION instead"
            )
        elif program.context not in ("ctx", "context", "") and own:
            advice.append(
                f"the first parameter of {program.name}, {program.context}, receives the context; "
                "write `def train(ctx, ...)`, with defaults for all others"
            )
        advice.append("no file is written until the program trains on one device")
        for text in advice:
            self._lines("", *(f"  {line}" for line in wrap(text, WIDTH - 2)))

    def _write(self, path: Path, text: str, layouts: LayoutFile) -> bool:
        """Writes the test, unless the file exists; says what was written."""
        why = create(path, text)
        shown = os.path.relpath(path)
        if why:
            self._lines("", f"{shown} is not written, because {why}; it would be:", "")
            self._lines(*(f"    {line}" for line in text.splitlines()))
        else:
            self._lines("", f"wrote {shown}")
        if layouts.own:
            self._lines(f"wrote {layouts.name}")
        for wanted in layouts.wanted:
            self._lines("", f"{layouts.name} is not changed, because it exists already; add:", "")
            self._lines(*(f"    {line}" for line in wanted.splitlines()))
        return not why

    def _next(self, path: Path, annotate: bool, lacking: list[Check]) -> None:
        command = f"pytest {os.path.relpath(path)}"
        self._lines("", "next:")
        if lacking:
            labels = ", ".join(row.label for row in lacking)
            self._lines(
                f"  do what the rows marked lacks say ({labels}), and run this again or the test"
            )
        self._lines(f"  {command}")
        if annotate:
            self._lines(f"  {command} --trainsafe-annotate   # adds layouts that are still missing")
        self._lines(
            f"  a test with assert_same_by for faults at every Point: {page('metamorphic.md')}"
        )

    def _lines(self, *lines: str) -> None:
        if self.reporter is not None:
            write_lines(self.reporter, lines)
