"""Bugs that show only where two or three axes have certain values, planted in small programs.

A case is a program, the axes to fuzz it over, and what a report should say.  Give the axes and
`args={"fault": case.fault}` to `trainsafe_fuzz`, with `max_world_size=4`:

    trainsafe_fuzz(f"{case.module}:train", **case.axes, args={"fault": case.fault})

A case with an empty fault is the clean program, which passes at every valid Point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bug:
    """One cause of failures.

    `needs` has a condition on each axis that the bug needs, as a Python expression over the value
    of that axis.  `implied` has the conditions that the rules of valid Points add to these: no
    Point that satisfies `needs` violates them, so a report may name them or not.  `acts` says
    exactly at which valid Points the bug acts.  `symptom` is "wrong" for wrong numbers, and
    "error" for an exception of a rank.
    """

    name: str
    needs: dict[str, str]
    acts: Callable[..., bool]
    implied: dict[str, str] = field(default_factory=dict)
    symptom: str = "wrong"


@dataclass(frozen=True)
class Case:
    """A planted bug, or several of them, or none.

    Most cases have one bug, described by `needs`, `implied` and `acts` as in `Bug`.  If `bugs` is
    not empty, it has all causes of failures of the case, and they act independently of each other:
    a report is right if it describes the bug of `bugs` that it found.  Then `acts` says where at
    least one of them acts.  `needs` is empty if the bugs are of equal rank; else it is that of the
    first one, and the others only fail at Points beside it.  A `flaky` bug acts in half of the
    runs at the Points of `acts`.  `Case.causes` is the list of bugs in either case.
    """

    name: str
    module: str
    axes: dict[str, list[Any]]
    fault: str
    needs: dict[str, str]
    acts: Callable[..., bool]
    flaky: bool = False
    what: str = ""
    implied: dict[str, str] = field(default_factory=dict)
    bugs: tuple[Bug, ...] = ()

    @property
    def causes(self) -> tuple[Bug, ...]:
        if self.bugs or not self.fault:
            return self.bugs
        return (Bug(self.fault, self.needs, self.acts, self.implied),)


VOCAB: dict[str, list[Any]] = {
    "tp": [1, 2, 4],
    "dp": [1, 2],
    "sp": [False, True],
    "vocabulary": [13, 16, 20, 24, 31, 32],
    "tied": [False, True],
    "microbatches": [2, 4],
    "dtype": ["float64"],
}
CONTEXT: dict[str, list[Any]] = {
    "tp": [1, 2, 4],
    "cp": [1, 2, 4],
    "dp": [1, 2],
    "recompute": [False, True],
    "layers": [1, 2],
    "hidden": [8, 16],
    "dtype": ["float64"],
}
PIPELINE: dict[str, list[Any]] = {
    "pp": [1, 2, 4],
    "dp": [1, 2],
    "layers": [2, 3, 4, 5],
    "microbatches": [1, 2, 3, 4, 6],
    "tied": [False, True],
    "hidden": [8, 12],
    "dtype": ["float64"],
}
ZERO: dict[str, list[Any]] = {
    "dp": [1, 2],
    "tp": [1, 2],
    "zero": [0, 1, 2],
    "hidden": [8, 9, 10, 11],
    "layers": [1, 2],
    "microbatches": [2, 4, 6],
    "dtype": ["float64"],
}
TAIL: dict[str, list[Any]] = {
    "dp": [1, 2, 4],
    "tail": [0, 1, 2],
    "buckets": [1, 2, 3],
    "microbatches": [2, 4, 8],
    "layers": [1, 2],
    "recompute": [False, True],
    "dtype": ["float64"],
}
CLIP: dict[str, list[Any]] = {
    "tp": [1, 2, 4],
    "dp": [1, 2, 4],
    "recompute": [False, True],
    "gated": [False, True],
    "clip": [False, True],
    "layers": [1, 2],
    "microbatches": [4, 8],
    "dtype": ["float64"],
}


def never(**_: Any) -> bool:
    return False


def padding_mask(tp: int = 1, vocabulary: int = 16, **_: Any) -> bool:
    return tp >= 2 and vocabulary % 8 != 0


def tied_twice(dp: int = 1, tied: bool = False, **_: Any) -> bool:
    return dp >= 2 and tied


def early_bias(tp: int = 1, sp: bool = False, **_: Any) -> bool:
    return tp >= 2 and not sp


def kept_part(tp: int = 1, cp: int = 1, recompute: bool = False, **_: Any) -> bool:
    return tp >= 2 and cp >= 2 and recompute


def term_group(tp: int = 1, cp: int = 1, **_: Any) -> bool:
    return tp >= 2 and cp >= 2


def term_group_alone(tp: int = 1, cp: int = 1, **_: Any) -> bool:
    return tp == 1 and cp >= 2


def term_group_any(cp: int = 1, **_: Any) -> bool:
    return cp >= 2


def tied_sum(pp: int = 1, tied: bool = False, **_: Any) -> bool:
    return pp >= 2 and tied


def rounded_scale(pp: int = 1, microbatches: int = 2, **_: Any) -> bool:
    return pp >= 2 and microbatches == 3


def whole_depth(pp: int = 1, layers: int = 2, **_: Any) -> bool:
    return layers % pp != 0


def lost_tail(zero: int = 0, hidden: int = 8, **_: Any) -> bool:
    return zero >= 1 and hidden % 2 == 1


def early_gather(zero: int = 0, dtype: str = "bfloat16", **_: Any) -> bool:
    return zero >= 1 and dtype == "bfloat16"


def overwritten(dp: int = 1, zero: int = 0, microbatches: int = 2, **_: Any) -> bool:
    return zero >= 2 and microbatches // dp >= 2


def mean_of_means(dp: int = 1, tail: int = 0, **_: Any) -> bool:
    return dp >= 2 and tail >= 1


def bucket_race(dp: int = 1, buckets: int = 1, **_: Any) -> bool:
    return dp >= 2 and buckets >= 2


def striped_gate(tp: int = 1, gated: bool = False, **_: Any) -> bool:
    return tp >= 2 and gated


def counted_twice(tp: int = 1, clip: bool = False, **_: Any) -> bool:
    return tp >= 2 and clip


def unreduced(dp: int = 1, recompute: bool = False, **_: Any) -> bool:
    return dp >= 2 and recompute


def counted_twice_or_unreduced(**axes: Any) -> bool:
    return counted_twice(**axes) or unreduced(**axes)


CASES: tuple[Case, ...] = (
    Case(
        name="vocab-padding-mask",
        module="axes_vocab",
        axes=VOCAB,
        fault="padding-mask",
        needs={"tp": "tp >= 2", "vocabulary": "vocabulary % 8 != 0"},
        acts=padding_mask,
        what="the vocabulary-parallel loss counts the columns that pad the vocabulary to eight",
    ),
    Case(
        name="vocab-tied-twice",
        module="axes_vocab",
        axes=VOCAB,
        fault="tied-twice",
        needs={"dp": "dp >= 2", "tied": "tied"},
        acts=tied_twice,
        what="a tied weight is listed by both of its modules and summed over dp twice",
    ),
    Case(
        name="vocab-early-bias",
        module="axes_vocab",
        axes=VOCAB,
        fault="early-bias",
        needs={"tp": "tp >= 2", "sp": "not sp"},
        acts=early_bias,
        what="without sequence parallelism every tp rank adds the bias before the all-reduce",
    ),
    Case(
        name="context-kept-part",
        module="axes_context",
        axes=CONTEXT,
        fault="kept-part",
        needs={"tp": "tp >= 2", "cp": "cp >= 2", "recompute": "recompute"},
        acts=kept_part,
        what="a recomputed layer's input is cut by a number that is the tp rank only if cp is 1",
    ),
    Case(
        name="context-term-group",
        module="axes_context",
        axes=CONTEXT,
        fault="term-group",
        needs={"tp": "tp >= 2", "cp": "cp >= 2"},
        acts=term_group_any,
        what="gradient terms of cp are gathered over tp: wrong sums with tp, an IndexError without",
        bugs=(
            Bug("term-group", {"tp": "tp >= 2", "cp": "cp >= 2"}, term_group),
            Bug(
                "term-group-alone",
                {"tp": "tp == 1", "cp": "cp >= 2"},
                term_group_alone,
                symptom="error",
            ),
        ),
    ),
    Case(
        name="pipeline-tied-sum",
        module="axes_pipeline",
        axes=PIPELINE,
        fault="tied-sum",
        needs={"pp": "pp >= 2", "tied": "tied"},
        acts=tied_sum,
        what="the two copies of a tied embedding do not sum their gradients",
    ),
    Case(
        name="pipeline-rounded-scale",
        module="axes_pipeline",
        axes=PIPELINE,
        fault="rounded-scale",
        needs={"pp": "pp >= 2", "microbatches": "microbatches == 3"},
        acts=rounded_scale,
        what="the last stage takes the loss scale from a table, which has 0.3333 for a third",
    ),
    Case(
        name="pipeline-whole-depth",
        module="axes_pipeline",
        axes=PIPELINE,
        fault="whole-depth",
        needs={"pp": "pp >= 2", "layers": "layers % 2 == 1"},
        acts=whole_depth,
        what="residual branches are scaled by pp times the layers of the smallest stage",
    ),
    Case(
        name="zero-lost-tail",
        module="axes_zero",
        axes=ZERO,
        fault="lost-tail",
        needs={"zero": "zero >= 1", "hidden": "hidden % 2 == 1"},
        implied={"dp": "dp >= 2"},
        acts=lost_tail,
        what="the last elements of parameters that dp does not divide are not gathered",
    ),
    Case(
        name="zero-early-gather",
        module="axes_zero",
        axes={**ZERO, "dtype": ["float64", "float32", "bfloat16"]},
        fault="early-gather",
        needs={"zero": "zero >= 1", "dtype": "dtype == 'bfloat16'"},
        implied={"dp": "dp >= 2"},
        acts=early_gather,
        what="bfloat16 parameters are gathered from the master weights before these are updated",
    ),
    Case(
        name="zero-overwritten",
        module="axes_zero",
        axes=ZERO,
        fault="overwritten",
        needs={"zero": "zero >= 2", "microbatches": "microbatches >= 4"},
        implied={"dp": "dp >= 2"},
        acts=overwritten,
        what="a rank's part of the gradient is overwritten by that of its next micro-batch",
    ),
    Case(
        name="tail-mean-of-means",
        module="axes_tail",
        axes=TAIL,
        fault="mean-of-means",
        needs={"dp": "dp >= 2", "tail": "tail >= 1"},
        acts=mean_of_means,
        what="each micro-batch counts the same, although the last one has fewer examples",
    ),
    Case(
        name="tail-bucket-race",
        module="axes_tail",
        axes=TAIL,
        fault="bucket-race",
        needs={"dp": "dp >= 2", "buckets": "buckets >= 2"},
        acts=bucket_race,
        flaky=True,
        what="in half of the runs, the last dp rank reduces later buckets before they are filled",
    ),
    Case(
        name="clip-striped-gate",
        module="axes_clip",
        axes=CLIP,
        fault="striped-gate",
        needs={"tp": "tp >= 2", "gated": "gated"},
        acts=striped_gate,
        what="gate and value are taken from alternate columns of the fused projection",
    ),
    Case(
        name="clip-norm-and-recompute",
        module="axes_clip",
        axes=CLIP,
        fault="counted-twice+unreduced",
        needs={},
        acts=counted_twice_or_unreduced,
        what="two bugs: the norm counts whole parameters on every tp rank, and the gradients of "
        "recomputed blocks are not summed over dp",
        bugs=(
            Bug("counted-twice", {"tp": "tp >= 2", "clip": "clip"}, counted_twice),
            Bug("unreduced", {"dp": "dp >= 2", "recompute": "recompute"}, unreduced),
        ),
    ),
    *(
        Case(f"{module.removeprefix('axes_')}-clean", module, axes, "", {}, never, what="no bug")
        for module, axes in (
            ("axes_vocab", VOCAB),
            ("axes_context", CONTEXT),
            ("axes_pipeline", PIPELINE),
            ("axes_zero", {**ZERO, "dtype": ["float64", "float32", "bfloat16"]}),
            ("axes_tail", TAIL),
            ("axes_clip", CLIP),
        )
    ),
)
