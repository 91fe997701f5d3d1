"""The finding that leads a failure's report, as plain data for the terminal's summary."""

from __future__ import annotations

from pytest_trainsafe.core.finding import Finding, ModuleSubject
from pytest_trainsafe.sweep.point_summary import FirstSummary


def first_of(lead: Finding) -> FirstSummary:
    """The data of a finding."""
    where = lead.where
    return {
        "judge": lead.judge,
        "check": lead.check,
        "where": str(lead.about or ""),
        "pattern": lead.pattern.text if lead.pattern is not None else "",
        "pattern_name": lead.pattern.name if lead.pattern is not None else "",
        "cause": lead.pattern.cause if lead.pattern is not None else "",
        "tensor": f"{where.shown} · {where.kind}" if where is not None else "",
        "module": _module_of(lead),
        "dtype": lead.dtype,
        "error": lead.error,
        "allowed": lead.allowed,
        "message": lead.message,
        "source": lead.source,
    }


def _module_of(lead: Finding) -> str:
    """The path of the module that a finding is about: `decoder.final_layernorm`."""
    if lead.where is not None:
        return lead.where.module
    return lead.subject.path if isinstance(lead.subject, ModuleSubject) else ""
