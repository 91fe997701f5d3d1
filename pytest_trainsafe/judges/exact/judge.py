"""The registered judge of exact numbers; `proof` does its work.

It judges tests at the rung `exact`.  For all other tests `proof`, with the semantics of all
operators, is not imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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


class ProofJudge:
    """Judges whether candidate and reference compute the same function of their initial values."""

    name = JUDGE
    of_rungs = True

    def required_runs(self, case: Case) -> Sequence[RunSpec]:
        """The Runs of the first sample; a proof requests more."""
        roles: tuple[Role, ...] = ("candidate", "reference")
        return [spec_of(case, role, RUNG) for role in roles]

    def judge(self, case: Case, runs: Runs, options: JudgeOptions) -> ProofJudgement:
        """Compares the two sides on exact numbers, and confirms what it finds.

        The certificate of a proof is written to the folder of the session.
        """
        from pytest_trainsafe.judges.exact.certificate import write
        from pytest_trainsafe.judges.exact.proof import proof_of

        judgement = proof_of(case, runs, options)
        if judgement.certificate is None:
            return judgement
        folder = runs.candidate.runs.folder / "certificates"
        path = write(judgement.certificate, folder, case.nodeid)
        return replace(judgement, artefacts={"certificate": str(path)})

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
