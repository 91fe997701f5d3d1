"""The slips that the observer notices: uses of torch's API that are rarely meant.

A slip is said in the roles of training, such as the optimizer, the loss or the model in training,
and not in names of one program.  The observer reports each as a change of the attribute `SLIP` of
an object called `TRAINING`, whose value is the slip's name and what happened; at the end of each
step the attribute is "", so that every program gives examples.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_trainsafe.judges.learn.events.events import Call, Change, Plain, Value
from pytest_trainsafe.judges.learn.events.known.inputs import INPUTS
from pytest_trainsafe.judges.learn.events.known.known import Known
from pytest_trainsafe.judges.learn.events.known.models import MODELS
from pytest_trainsafe.judges.learn.events.known.optimization import OPTIMIZATION
from pytest_trainsafe.judges.learn.events.known.steps import STEPS
from pytest_trainsafe.judges.learn.events.setup_text import SETUP

#: The object and the attribute under which slips are recorded.
TRAINING, SLIP = "training", "slip"

#: The attribute of the same object that describes the graph of a loss.
GRAPH = "graph"

#: The attribute of the same object that has what other runs of the program are compared by: a name
#: and what it is (`noted`).
NOTED = "noted"
#: How such names begin: digests of the operators of a loss in their order; the factor by which a
#: loop changes a gradient between the backward and the step; how far indices go in what they
#: number; and two sets of `BITS` bits, of the frequent values of a weight and the most frequent.
ORDER, FACTOR, REACH, VALUES = "order", "factor of the gradient", "reach", "values"
BITS = 256

#: The attributes by which ranks are compared, each recorded once in a round: hashes of its batch
#: and of some examples of that, the settings of the sampler that gave it, what ranks sum, what they
#: declare to be replicated, the factor by which gradients were scaled before the step; and hashes
#: of buffers, of weights that are not sharded among sharded ones, of sharded ones, and of tables;
#: the norm of the gradients that it steps with, and how many steps its scaler has left out.
BATCH, ROWS, SAMPLER, SUMMED = "batch", "rows", "sampler", "summed"
DECLARED, SCALING, BUFFERS = "declared", "scaling", "buffers"
WHOLE, SHARDS, TABLES = "whole", "shards", "tables"
NORM, LEFT_OUT = "norm", "left_out"
COMPARED = (
    *(BATCH, ROWS, SAMPLER, SUMMED, DECLARED, SCALING, BUFFERS),
    *(WHOLE, SHARDS, TABLES, NORM, LEFT_OUT),
)

#: Attributes that are texts about the training and no values of it.
TEXTS = (SETUP, SLIP, GRAPH, NOTED, *COMPARED)


#: Every slip that may be reported, by name.
SLIPS: Mapping[str, Known] = {**OPTIMIZATION, **STEPS, **MODELS, **INPUTS}


def slip_text(name: str, detail: str) -> str:
    """The value of the attribute: the name of a slip, and what happened."""
    return f"{name}: {detail}"


def slip_change(text: str, meta: Mapping[str, Plain], by: Call | None = None) -> Change:
    """The change that reports a slip, which happened in the call `by`.

    With "" as text it is the sample at the end of a step.
    """
    before = Value("str", "") if text else None
    value = Value("str", text)
    return Change(TRAINING, TRAINING, SLIP, value, meta, before, by, changed=bool(text))


def noted(name: str, value: str) -> str:
    """The value of `NOTED`: a name, and what it is."""
    return f"{name}: {value}"


def noted_in(text: str) -> tuple[str, str]:
    """The name and the value in a text that `noted` made."""
    name, _, value = text.partition(": ")
    return name, value


def text_change(name: str, text: str, meta: Mapping[str, Plain], by: Call | None) -> Change:
    """The change that gives a training's attribute `name` a text in the call `by`."""
    return Change(TRAINING, TRAINING, name, Value("str", text), meta, Value("str", ""), by)


def slip_in(text: object) -> str:
    """The name of the slip in a value of the attribute; "" if there is none."""
    return str(text).partition(":")[0]
