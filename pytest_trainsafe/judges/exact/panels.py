"""The panels of a proof: what its certificate covers; and of a refutation: the comparison."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.judges.compare.panels import panels as compared_panels
from pytest_trainsafe.judges.exact.certificate import Certificate
from pytest_trainsafe.judges.exact.proof import ProofJudgement
from pytest_trainsafe.judges.sections import findings_tables
from pytest_trainsafe.report.panels import Panel, Table, number
from pytest_trainsafe.report.sections import label

#: The most tensors, and the most operators, of a certificate that are listed.
MOST_TENSORS, MOST_OPERATORS = 600, 200


def panels(judgement: ProofJudgement) -> Sequence[Panel]:
    """The panels of a proof, of a refutation, or of a test that is neither."""
    made = [] if judgement.certificate is None else certificate_panels(judgement.certificate)
    own = [each for each in judgement.findings if each.judge == judgement.judge]
    made += findings_tables(own)
    if judgement.compared is not None and judgement.certificate is None:
        made += compared_panels(judgement.compared)
    return made


def certificate_panels(certificate: Certificate) -> list[Panel]:
    """What a certificate states, what it assumes, and the tensors and operators that it covers."""
    facts = [
        ("proved", f"{len(certificate.tensors)} tensors are equal, without rounding"),
        ("missed with probability", f"at most {certificate.error:.1e}"),
        ("seeds", ", ".join(map(str, certificate.seeds))),
        ("hashed values", str(certificate.hashed)),
        ("multiplications", str(certificate.multiplications)),
        ("program's files", str(len(certificate.sources))),
    ]
    facts += [("assumes", text) for text in certificate.assumes[:40]]
    facts += [("not covered", text) for text in certificate.not_covered[:40]]
    facts += [("accepted", text) for text in certificate.accept[:40]]
    met = certificate.candidate.operators
    tensors = [*certificate.tensors.items()][:MOST_TENSORS]
    operators = sorted(certificate.semantics.items(), key=lambda each: -met.get(each[0], 0))
    left = len(certificate.tensors) - len(tensors)
    return [
        Table(title="What is proved", rows=tuple((name, label(text)) for name, text in facts)),
        Table(
            title="Tensors that are equal",
            columns=("tensor", "shape and hash", "held by the ranks as"),
            rows=tuple(
                (label(name), label(text), label(certificate.layouts.get(name, "")))
                for name, text in tensors
            ),
            anchors=tuple(label(name) for name, _ in tensors),
            note=f"{left} more" if left else "",
        ),
        Table(
            title="Operators, and what states their semantics",
            columns=("operator", "met", "semantics"),
            rows=tuple(
                (label(name), number(met.get(name, 0)), label(module))
                for name, module in operators[:MOST_OPERATORS]
            ),
        ),
    ]
