"""The recorded lines of a candidate's program, by what they do.

Used by `judges.compare.localize.code.places`.
"""

from __future__ import annotations

from pytest_trainsafe.core.code_files import is_fixture
from pytest_trainsafe.judges.compare.fault.clause import Clause, at
from pytest_trainsafe.judges.compare.localize.code.lines import (
    NOWHERE,
    Place,
    own,
    program_line,
    step_of,
    through,
)
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.trace.facts import Site, What
from pytest_trainsafe.trace.reader import Trace

#: What a line does, for the report's "look at" row.
DOES: dict[What, str] = {
    "model": "calls the model",
    "loss": "reports the loss",
    "norm": "reports the gradient norm",
    "backward": "starts the backward",
    "step": "steps the optimizer",
    "alter": "changes parameters before the step's last forward",
    "mode": "switches to evaluation mode",
    "watch": "passes the annotations to ctx.watch",
    "clear": "clears gradients between two backwards of a step",
}


class ProgramLines:
    """The lines of a program that the trace of its candidate recorded as `Site`."""

    def __init__(self, candidate: Trace, program: Program) -> None:
        self.candidate = candidate
        self.program = program
        found = dict.fromkeys(site for rank in candidate.ranks for site in rank.events_of(Site))
        self.sites = [site for site in found if site.what != "mode"]

    def does(self, *kinds: What) -> Place:
        """The first line that does one of these; NOWHERE if none is known."""
        for what in kinds:
            for site in self.sites:
                if site.what == what:
                    return self.place(site, DOES[what])
        return NOWHERE

    def led_there(self) -> str:
        """The user's line that calls the model, for faults in installed packages."""
        sites = [site for site in self.sites if site.what == "model"]
        return next((site.user or site.at for site in sites if own(site.user or site.at)), "")

    def optimizer(self) -> Place:
        """The line that steps the optimizer, with that of its construction."""
        found = self.does("step")
        for stepper in (site for site in self.sites if site.what == "stepper"):
            return found.and_also(step_of(stepper, self.sites))
        made = next((site for site in self.sites if site.what == "optimizer"), None)
        if made is not None and not found:
            return self.place(made, f"constructs {made.name}")
        line = "" if made is None else made.user if made.user not in ("", found.source) else made.at
        if made is None or is_fixture(line):
            return found
        return found.and_also(at(f"{made.name} is constructed", line, kind="construction"))

    def written(self, site: Site) -> Place:
        """The place of a line that changes gradients in place."""
        when = " between two backwards of a step" if site.what == "early" else ""
        return self.place(site, f"changes gradients by {site.name}{when}")

    def place(self, site: Site, does: str) -> Place:
        """The user's line, or a framework's line with that of the user's program; what it does.

        Lines of this package's loops do not stand alone, because users have not written them.
        """
        if site.user:
            return Place(site.user, (through(site, does),))
        program = program_line(self.program)
        if is_fixture(site.at) and program:
            loop = at(f"the loop that trains it {does}", site.at)
            return self.program_itself().and_also(loop)
        return Place(site.at, (Clause(does), *self.program_of(site.at)))

    def program_itself(self) -> Place:
        """The line of the program's function, or its script."""
        return Place(program_line(self.program), (Clause("the program"),))

    def program_of(self, source: str) -> list[Clause]:
        """The clause on the line of the user's program, if `source` is not in the user's code."""
        program = "" if own(source) else program_line(self.program)
        return [at("the program", program, by=" is at ")] if own(program) else []
