"""The registered judge of exact numbers; `proof` does its work.

It judges tests at the rung `exact`.  For all other tests `proof`, with the semantics of all
operators, is not imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.contract import FindingsJudgement, JudgeOptions
from pytest_trainsafe.judges.exact import JUDGE, RUNG
from pytest_trainsafe.runs.specs import Role, spec_of
from pytest_trainsafe.runs.traces import Runs
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.run_spec import RunSpec

if TYPE_CHECKING:
    from pytest_trainsafe.judges.exact.proof import ProofJudgement


@dataclass(frozen=True, slots=True)
class ProofJudge:
    """Judges whether candidate and reference compute the same function of their initial values.

    With `small`, they are judged at small sizes in place of the test's own.
    """

    small: bool = False
    name = JUDGE
    of_rungs = True

    def required_runs(self, case: Case) -> Sequence[RunSpec]:
        """The Runs of the first sample; a proof requests more."""
        if self.small:
            return []
        roles: tuple[Role, ...] = ("candidate", "reference")
        return [spec_of(case, role, RUNG) for role in roles]

    def judge(self, case: Case, runs: Runs, options: JudgeOptions) -> ProofJudgement:
        """Compares the two sides on exact numbers, and confirms what it finds.

        The certificates of proofs are written to the folder of the session.
        """
        from pytest_trainsafe.judges.exact.certificate import write
        from pytest_trainsafe.judges.exact.proof import proof_of, small_proofs

        if self.small:
            found = small_proofs(case, runs, options)
        else:
            found = [proof_of(case, runs, options)]
        folder = runs.candidate.runs.folder / "certificates"
        paths = {}
        for number, each in enumerate(found):
            if each.certificate is not None:
                what = "certificate" if number == 0 else f"certificate {number + 1}"
                name = case.nodeid if number == 0 else f"{case.nodeid}.{number + 1}"
                paths[what] = str(write(each.certificate, folder, name))
        return replace(found[-1], artefacts=paths)

    def explain(
        self, case: Case, runs: Runs, options: JudgeOptions, lead: Finding
    ) -> FindingsJudgement | None:
        """What exact numbers say of the first wrong tensor of a test in other dtypes.

        None where this may be slow or in vain: unless a Run of the program on exact numbers has
        finished in this session, and where failures are not localised.
        """
        if lead.where is None or not case.settings.localize or not runs.candidate.has_run(RUNG):
            return None
        from pytest_trainsafe.judges.exact.proof import explained

        return explained(case, runs, options, lead)
