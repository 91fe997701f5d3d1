"""`python -m pytest_trainsafe COMMAND`: what needs no pytest."""

from __future__ import annotations

import sys
from importlib import import_module

#: The commands, as modules whose `main` takes the other arguments and returns the exit status.
COMMANDS = {
    "certificate": "pytest_trainsafe.judges.exact.command",
    "learn": "pytest_trainsafe.judges.learn.command.main",
    "refine": "pytest_trainsafe.judges.refine.command",
    "report": "pytest_trainsafe.report.html.command",
}


def main(arguments: list[str]) -> int:
    """Runs a command and returns its exit status; 2 for an unknown one."""
    name, *rest = arguments or [""]
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"usage: python -m pytest_trainsafe COMMAND ...; commands: {known}", file=sys.stderr)
        return 2
    status: int = import_module(COMMANDS[name]).main(rest)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
