"""The panels of graphs: the relations that a certificate has, or the operator that has none."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.judges.refine.certificate.content import Certificate
from pytest_trainsafe.judges.refine.judge import RefinementJudgement
from pytest_trainsafe.judges.sections import findings_tables
from pytest_trainsafe.report.panels import Panel, Table
from pytest_trainsafe.report.sections import label

#: The most tensors whose relations are listed.
MOST_TENSORS = 600


def panels(judgement: RefinementJudgement) -> Sequence[Panel]:
    """The panels of a proof from graphs, or of what refutes it."""
    if judgement.certificate is None:
        return findings_tables(judgement.findings)
    return certificate_panels(judgement.certificate)


def certificate_panels(certificate: Certificate) -> list[Panel]:
    """What a certificate states, what it assumes, and the relation of every tensor."""
    mesh = " ".join(f"{axis}={size}" for axis, size in certificate.mesh.items())
    facts = [
        ("proved", f"{len(certificate.relations)} tensors of {certificate.sequential.name}"),
        ("ranks", f"{len(certificate.ranks)} ({mesh})"),
        ("missed with probability", f"at most {certificate.error:.1e}"),
    ]
    facts += [(f"input {name}", text) for name, text in [*certificate.inputs.items()][:40]]
    facts += [(f"result {name}", text) for name, text in [*certificate.outputs.items()][:40]]
    facts += [("assumes", text) for text in certificate.assumed[:40]]
    facts += [("without a relation", name) for name in certificate.missing[:40]]
    shown = [*certificate.relations.items()][:MOST_TENSORS]
    left = len(certificate.relations) - len(shown)
    return [
        Table(title="What is proved", rows=tuple((label(n), label(t)) for n, t in facts)),
        Table(
            title="Relations of tensors to those of the ranks",
            columns=("tensor", "relation"),
            rows=tuple((label(name), label("; ".join(each))) for name, each in shown),
            anchors=tuple(label(name) for name, _ in shown),
            note=f"{left} more" if left else "",
        ),
    ]
