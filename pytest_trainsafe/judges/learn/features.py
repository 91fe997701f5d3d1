"""The features of calls and changes that preconditions read, and the values that rules compare.

Features map names of fields, such as "phase" or "arg.input.dtype", to values.  Inference and checks
get the features from the same functions, so that both see equal features.  Inference reads recorded
calls and changes from the columns of a table, and computes the features once for each distinct
record.  A check computes the features of each call or change as it happens.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_trainsafe.judges.learn.conditions import Feature
from pytest_trainsafe.judges.learn.events.events import Call, Change, Plain, Value
from pytest_trainsafe.judges.learn.names import family

#: Meta variables that are numbers.  `context_features` derives features from some of them.
_NUMBERS = {"step", "microbatch", "epoch", "join", "rank", "world_size"}

#: Meta variables whose values say in which context training runs.
CONTEXT_FIELDS = frozenset({"phase", "autocast", "no_grad", "inference", "training"})


def is_domain(field: str) -> bool:
    """Whether a rule is judged only where this field has a value from the runs it was learned from.

    This is so for the context, dtypes and modes: a rule that was learned from training says nothing
    about evaluation.
    """
    return field in CONTEXT_FIELDS or field in _MODES or field.endswith(TYPES)


_MODES = {
    *("class", "self.training", "arg.training", "distributed", "first_step", "in_step"),
    *("self.has_gradients", "self.zero_rate"),
}
#: Fields that say where in a run a call is.
PLACES = frozenset({"distributed", "first_step", "in_step"})
#: Fields that say what tensors a call was given.
TYPES = (".dtype", ".requires_grad")

#: A longer text is a path or a message, which no precondition should name.
_LONGEST = 40

#: The attributes of an object that say in which mode it is called.  Others are the settings of one
#: program, such as its rates.
_OWN = {"self.training", "self.has_gradients", "self.zero_rate"}

#: Flags of parameters whose absence means False (Megatron-LM's conventions).
_FLAGS = ("tensor_model_parallel", "sequence_parallel", "expert")

Key = tuple[str, Plain] | None


def context_features(meta: Mapping[str, Plain], first_step: int | None) -> dict[str, Feature]:
    """What preconditions may read of the context of a call or change, by name of the field.

    `meta` has the meta variables that were recorded with it, such as the step and the phase.
    `first_step` is the number of the process's first step.
    """
    step = meta.get("step")
    found: dict[str, Feature] = {"in_step": step is not None}
    if step is not None:
        found["first_step"] = step == first_step
    if meta.get("microbatch") is not None:
        found["first_microbatch"] = meta["microbatch"] == 0
    size = meta.get("world_size")
    if isinstance(size, int):
        found["distributed"] = size > 1
    for name, value in meta.items():
        if name not in _NUMBERS and not name.endswith("_rank") and is_feature(value):
            found[name] = value
    return found


def is_feature(value: Plain) -> bool:
    """Whether a precondition may name this value: a short text, a truth value or None."""
    return value is None or isinstance(value, bool) or (isinstance(value, str) and _short(value))


def _short(text: str) -> bool:
    return len(text) <= _LONGEST


def value_features(place: str, value: Value) -> dict[str, Feature]:
    """What preconditions may read of an argument or attribute, by name of the field.

    `place` is the name of the argument or attribute, such as "arg.input", and the beginning of the
    names of the fields, such as "arg.input.dtype".
    """
    facts = value.tensor
    if facts is not None:
        found: dict[str, Feature] = {
            f"{place}.dtype": facts.dtype,
            f"{place}.requires_grad": facts.requires_grad,
        }
        if place == "value":
            found.update({f"value.{flag}": False for flag in _FLAGS})
        for flag in facts.flags:
            found[f"{place}.{flag}"] = True
        return found
    if place.startswith("self.") and place not in _OWN:
        return {}
    if value.type == "bool" or value.type == "NoneType" or isinstance(value.plain, str):
        return {place: value.plain} if is_feature(value.plain) else {}
    return {}


def call_features(call: Call, context: Mapping[str, Feature]) -> dict[str, Feature]:
    """What preconditions may read of a call: features of its context, its class and its arguments.

    Only an API of a family (`names.family`) has a class: `torch.optim.Adam.step` has "Adam".
    """
    found = dict(context)
    name = family(call.api)[1]
    if name:
        found["class"] = name
    for place, value in call.values.items():
        if not place.startswith("result"):
            found.update(value_features(place, value))
    return found


def change_features(change: Change, context: Mapping[str, Feature]) -> dict[str, Feature]:
    """What preconditions may read of a change: features of its context and of the new value."""
    return {**context, **value_features("value", change.after)}


def kind_of(change: Change) -> str:
    """The kind of a change: "set", "cleared", "updated" or "other".

    A value is empty if it is None; a gradient is also empty if it is a tensor of zeros.  "set": no
    earlier value is known, or an empty value became non-empty.  "cleared": a non-empty value became
    empty.  "updated": a non-empty value became another non-empty value.  "other": an empty value
    stayed empty.
    """
    if change.before is None:
        return "set"
    if change.attribute != "grad":
        # Zeros are weights like others: adapters, biases and running means begin with them.
        before, after = (value.type == "NoneType" for value in (change.before, change.after))
    else:
        before, after = is_empty(change.before), is_empty(change.after)
    if before:
        return "other" if after else "set"
    return "cleared" if after else "updated"


def is_empty(value: Value) -> bool:
    """Whether a value is None, or a tensor of zeros."""
    return value.type == "NoneType" or (value.tensor is not None and value.tensor.zero)


def property_of(value: Value, name: str) -> Key:
    """A property of a value, in a form that is equal for equal properties.

    `name` is "value", "identity", "dtype", "device", "digest", "shape", "shape[0]" or "shape[-1]".
    None if the value has no such property.
    """
    facts = value.tensor
    if name == "identity":
        return ("identity", value.identity) if value.identity else None
    if name == "value":
        return None if facts is not None else _plain_key(value)
    if facts is None:
        return None
    if name in ("dtype", "device"):
        return "text", facts.dtype if name == "dtype" else facts.device
    if name == "digest":
        return ("digest", facts.digest) if facts.digest else None
    if name == "shape":
        return "text", "x".join(map(str, facts.shape))
    if not facts.shape:
        return None
    return "number", float(facts.shape[0] if name == "shape[0]" else facts.shape[-1])


def _plain_key(value: Value) -> Key:
    plain = value.plain
    if plain is None:
        return ("none", None) if value.type == "NoneType" else None
    if isinstance(plain, bool):
        return "bool", plain
    if isinstance(plain, str):
        return "text", plain
    if isinstance(plain, int) and abs(plain) > 2**53:
        return "integer", str(plain)
    number = float(plain)
    return None if number != number else ("number", number)


def number_of(value: Value, name: str = "value") -> float | None:
    """The property `name` of a value (as in `property_of`, or "norm"); None if it is no number."""
    if name == "norm":
        return None if value.tensor is None else value.tensor.norm
    if name == "value" and isinstance(value.plain, bool):
        return None
    key = property_of(value, name)
    return key[1] if key is not None and isinstance(key[1], float) else None
