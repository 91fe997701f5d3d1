"""Says of a wrong update that a setting of the optimizer causes it, if one differs so.

Either the setting differs by the factor of the update, or it differs for the parameters of all
wrong updates and for no others, as a schedule that stepped twice or a decay that is not applied.

Called by the ladder for a failed rung.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import msgspec

from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.tensor_id import INITIAL
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.explain.held import parameter_of
from pytest_trainsafe.judges.compare.guards.later_steps import Apart, settings_apart
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Settings

#: The largest relative difference between the factor of an update and that of a setting.
NEAR = 1e-3

#: The settings with which an optimizer computes its states from right gradients.
_OF_STATES = frozenset({"betas", "momentum", "dampening", "alpha"})

_THE_SETTING = "the optimizer's setting "


def with_known_setting(rung: RungTraces, comparison: Comparison) -> None:
    """Replace the causes of wrong updates in `comparison` by the setting that explains them."""
    wrong = (f for f in comparison.findings if _is_update(f) or _is_state(f))
    steps = [finding.where.step for finding in wrong if finding.where is not None]
    if steps:
        groups = (group for rank in rung.candidate.ranks for group in rank.events_of(Settings))
        held = frozenset(name for group in groups for name in group.parameters)
        for step in (min(steps), None):
            apart = settings_apart(rung.candidate, rung.reference, step)
            known = of_settings(comparison.findings, apart, held, ends=step is None)
            comparison.findings[:] = known


def of_settings(
    findings: Iterable[Finding], apart: Sequence[Apart], held: Collection[str], ends: bool = True
) -> list[Finding]:
    """The findings; an update that a setting that differs explains has this as its cause.

    `ends` says that the settings are those after the program, and not those of the wrong step.
    `held` has the parameters that the optimizer holds: others, such as an average of the weights,
    only follow.
    """
    found = [*findings]
    graded = bool(_failing(found, "main_grad"))
    wrong = {path for each in found for path in _updated(each)} & {*held}
    # A wrong gradient makes a wrong update whatever the settings are.
    explained = not wrong & _failing(found, "main_grad")
    same = [each for each in apart if explained and {*each.names} == wrong]
    has = " ends at" if ends else " is"
    return [
        each if graded and _is_state(each) else _known(each, apart, same, has) for each in found
    ]


def is_setting(pattern: Pattern) -> bool:
    """Whether the cause of a pattern is a setting of the optimizer."""
    return pattern.cause.startswith(_THE_SETTING)


def _failing(findings: Iterable[Finding], kind: str) -> set[str]:
    """The paths of the wrong tensors of a kind."""
    wrong = (each.where for each in findings if each.verdict == "fail" and each.where is not None)
    return {where.path for where in wrong if where.kind == kind}


def _is_update(finding: Finding) -> bool:
    """Whether an update is wrong, or replicas of a parameter differ after a step."""
    return bool(_updated(finding))


def _is_state(finding: Finding) -> bool:
    return bool(_failing([finding], "optimizer_state"))


def _updated(finding: Finding) -> set[str]:
    """The path of the parameter that a finding says is updated wrongly, or none."""
    where = finding.where
    kind = "param" if finding.check == "replicas" and where and where.step > INITIAL else "update"
    return _failing([finding], kind)


def _known(finding: Finding, apart: Sequence[Apart], same: Sequence[Apart], has: str) -> Finding:
    """The finding with its cause; `same` are settings that differ for all wrong updates alone.

    `has` are the words between a setting and its value.
    """
    if not (_is_update(finding) or _is_state(finding)) or (
        finding.pattern is not None and is_setting(finding.pattern)
    ):
        return finding
    assert finding.where is not None
    factor = 0.0 if finding.pattern is None else finding.pattern.factor
    for each in apart:
        own = not each.names or parameter_of(finding.where) in each.names
        of_state = finding.where.kind == "optimizer_state" and each.key in _OF_STATES
        if own and (of_state or (factor and _has_factor(each, factor))):
            text = f"{each.key} is {each.here}, in the reference {each.there}"
            return _caused(finding, each.key, text)
    decays = finding.pattern is not None and finding.pattern.name == "decay"
    # A decay differs for parameters that are zero as well, which it does not change.
    among = [each for each in apart if "decay" in each.key] if decays else same
    own_same = [each for each in among if finding.where.path in each.names]
    if own_same and (finding.pattern is None or factor or decays):
        other = " at" if has.endswith(" at") else ""
        texts = [f"{s.key}{has} {s.here}, in the reference{other} {s.there}" for s in own_same]
        keys = " and another ".join(each.key for each in own_same)
        return _caused(finding, keys, "; ".join(texts))
    return finding


def _caused(finding: Finding, keys: str, values: str) -> Finding:
    pattern = finding.pattern or Pattern(
        "setting", f"what the optimizer updates wrongly, and nothing else, has another {keys}"
    )
    pattern = msgspec.structs.replace(pattern, cause=_THE_SETTING + values)
    return msgspec.structs.replace(finding, pattern=pattern)


def _has_factor(apart: Apart, factor: float) -> bool:
    try:
        here, there = float(apart.here), float(apart.there)
    except ValueError:
        return False
    return there != 0 and math.isclose(here / there, factor, rel_tol=NEAR)
