"""The texts of refinement: the report of a failure, a line of it, and the lines of a proof."""

from __future__ import annotations

from pytest_trainsafe.core.finding import CallSubject
from pytest_trainsafe.judges.refine.certificate.content import Certificate
from pytest_trainsafe.judges.refine.judge import RefinementJudgement

_WIDTH = 12


def message(judgement: RefinementJudgement) -> str:
    """The report of graphs that were refuted, or of which nothing can be said."""
    (finding,) = judgement.findings
    if finding.verdict == "inconclusive":
        return f"trainsafe: nothing can be said of the graphs\n\n{finding.message}"
    assert isinstance(finding.subject, CallSubject)
    rows = [("starts at", str(finding.subject)), ("tensor", finding.message)]
    evidence = dict(finding.evidence)
    rows += [(name, str(value)) for name, value in finding.evidence if name.startswith("input ")]
    if finding.pattern is not None:
        rows.append(("pattern", finding.pattern.text))
        rows.append(("so", finding.pattern.cause))
    if "layouts" in evidence:
        rows.append(("layouts", str(evidence["layouts"])))
    rows.append(("wrong", str(evidence["wrong results"])))
    if "sizes" in evidence:
        rows.append(("sizes", str(evidence["sizes"])))
    width = max(_WIDTH, *(len(name) + 2 for name, _ in rows))
    body = "\n".join(f"  {name:{width}}{text}" for name, text in rows)
    return f"trainsafe: the ranks' graphs do not refine the sequential graph\n\n{body}"


def first_line(judgement: RefinementJudgement) -> str:
    """The finding in one line."""
    (finding,) = judgement.findings
    if finding.verdict == "inconclusive":
        return f"inconclusive: {finding.message} ({finding.check})"
    said = finding.message
    if finding.pattern is not None and finding.pattern.short:
        said = f"{dict(finding.evidence)['tensor']}: {finding.pattern.short}"
    return f"{finding.subject}: {said}"


def proved(certificate: Certificate) -> str:
    """What a certificate says, in a few lines."""
    tensors, ranks = len(certificate.relations), len(certificate.ranks)
    name = certificate.sequential.name
    lines = [
        f"proved: {tensors} tensors of {name} have a clean relation to those of {ranks} ranks",
        *(f"  {name}: {relation}" for name, relation in certificate.outputs.items()),
        f"error at most {certificate.error:.1e}, with {len(certificate.seeds)} seeds",
    ]
    if certificate.engines:
        both = sum(each == "both" for each in certificate.engines.values())
        lines.append(f"of {len(certificate.engines)} stages, z3 proves {both} too")
    if certificate.symbols:
        tried = (each.symbols for each in (certificate, *certificate.others))
        sizes = "; ".join(", ".join(f"{n}={v}" for n, v in each.items()) for each in tried)
        lines.append(f"for the sizes {sizes}")
        lines += [f"assumed: {each}" for each in certificate.assume]
    if certificate.sizes:
        inputs = (
            f"{name} {own}" for name, own in certificate.sizes[0].items()
            if name in certificate.inputs
        )  # fmt: skip
        lines.append(f"evaluated with small sizes: {', '.join(inputs)}")
    if certificate.missing:
        lines.append(f"without a relation, and not needed: {', '.join(certificate.missing)}")
    return "\n".join([*lines, *(f"assumed: {each}" for each in certificate.assumed)])
