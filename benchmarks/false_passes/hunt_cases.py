"""Ideas for false passes: small programs with a planted fault, and what a comparison must say of each.

An idea names a program (`module`, whose function is `train`), the Point, arguments of both sides, and the fault, which
acts in the candidate only; its clean twin is the same with `fault=""`.  The ideas of `hunt_cache` are stories of several
runs instead: `hunt_cache.steps(folder, **args, fault=...)`.

`expect` is "fail", or "fail-or-said" where no tensor of the test shows the fault: then an inconclusive check is
right too, or a line which says that the thing at fault is not compared.  A pass without a word is never right.
`clean` is what the twin comes to: "pass"; "said" if its runs differ by themselves, which must be named; or
"pass-or-said".

Keys of `settings`: "dtypes" (the rungs, as for --trainsafe-dtype), "accept" (names of checks), "loosen" (arguments of
Loosen), "settings" (fields of Settings).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Mechanism = Literal["widen", "skip", "exclude", "layout", "cache", "other"]


@dataclass(frozen=True)
class Idea:
    """One way in which a fault might pass."""

    name: str
    mechanism: Mechanism
    module: str
    point: dict[str, Any]
    args: dict[str, Any]
    fault: str
    what: str
    expect: Literal["fail", "fail-or-said"]
    settings: dict[str, Any] = field(default_factory=dict)
    clean: Literal["pass", "said", "pass-or-said"] = "pass"


FAIL: Literal["fail"] = "fail"
SAID: Literal["fail-or-said"] = "fail-or-said"
DP, TP = {"dp": 2}, {"tp": 2}


def quantised(name: str, fault: str, what: str, point: dict[str, Any] = TP, **args: Any) -> Idea:
    return Idea(f"quantised-{name}", "widen", "hunt_quantised", point, args, fault, what, FAIL)


QUANTISED = (
    quantised("step-norm", "norm_1005", "A grid with a power-of-two step behind the embedding; the norm's gradient is 1.005 times too large.", jump="step", bits=4),
    quantised("step-up", "up_1003", "A finer grid, a wider model; the gradient of a column parallel weight is 1.003 times too large.", jump="step", bits=6, hidden=32),
    quantised("step-head", "head_101", "A coarse grid, a narrow model; the gradient of the head's weight is 1.01 times too large.", jump="step", bits=2, hidden=8),
    quantised("power-norm", "norm_1005", "Rounding down to a power of two; the norm's gradient is 1.005 times too large.", jump="power"),
    quantised("power-up", "up_1003", "Rounding down to a power of two, a wider model; a column parallel weight's gradient is 1.003 times too large.", jump="power", hidden=32),
    quantised("power-head", "head_101", "Rounding to the nearest power of two; the head's gradient is 1.01 times too large.", jump="nearest_power", hidden=8),
    quantised("power-embedding", "embedding_101", "Rounding down to a power of two; the gradient of the embedding itself is 1.01 times too large.", jump="power"),
    quantised("floor-bias", "down_bias_102", "Floor on a grid, on whose points many values lie; a row parallel bias's gradient is 1.02 times too large.", jump="floor", bits=5),
    quantised("int8-loss", "loss_101", "Int8 codes by the greatest value; the differentiated loss is 1.01 times the reported one.", jump="int8"),
    quantised("sign-partial", "partial_norm", "Binary features; the norm's gradient misses its sum over tp.", jump="sign"),
    quantised("topk-embedding", "embedding_101", "Only the greater half of a token's features, with ties; the embedding's gradient is 1.01 times too large.", jump="topk"),
    quantised("argmax-head", "head_101", "Only the greatest feature; the head's gradient is 1.01 times too large.", jump="argmax"),
    quantised("step-bfloat16", "norm_1005", "A grid with a power-of-two step in a recipe of bfloat16; the norm's gradient is 1.005 times too large.", TP | {"dtype": "bfloat16"}, jump="step", bits=5),
)  # fmt: skip


def unseeded(name: str, fault: str, what: str, clean: Any = "said", **args: Any) -> Idea:
    return Idea(
        f"unseeded-{name}", "widen", "hunt_unseeded", DP, args, fault, what, SAID, clean=clean
    )


UNSEEDED = (
    unseeded("numpy-bias", "bias_101", "NumPy noise on the inputs is not seeded; gradients of biases are 1.01 times too large.", source="numpy"),
    unseeded("numpy-weight", "weight_102", "NumPy noise on the inputs is not seeded; gradients of weights are 1.02 times too large.", source="numpy"),
    unseeded("numpy-loss", "loss_101", "NumPy noise on the inputs is not seeded; the loss is 1.01 times too large.", source="numpy"),
    unseeded("numpy-targets", "weight_102", "The noise is on the targets; gradients of weights are 1.02 times too large.", source="numpy", where="target"),
    unseeded("numpy-large", "unreduced_bias", "Noise ten times as large; a bias's gradient is not reduced over dp.", source="numpy", size=0.1),
    unseeded("numpy-small", "bias_101", "Noise of 1e-6 only; gradients of biases are 1.01 times too large.", source="numpy", size=1e-6),
    unseeded("numpy-global", "lr_105", "NumPy's global generator; the learning rate is 1.05 times too large.", "pass-or-said", source="numpy_global"),
    unseeded("torch", "unreduced_bias", "torch.Generator().seed(); a bias's gradient is not reduced over dp.", source="torch"),
    unseeded("random", "bias_101", "random.Random() without a seed; gradients of biases are 1.01 times too large.", source="random"),
    unseeded("random-global", "weight_102", "Python's global generator; gradients of weights are 1.02 times too large.", "pass-or-said", source="random_global"),
    unseeded("urandom", "loss_101", "os.urandom; the loss is 1.01 times too large.", source="urandom"),
    unseeded("uuid", "lr_105", "A seed from uuid4; the learning rate is 1.05 times too large.", source="uuid"),
    unseeded("time", "weight_102", "A seed from the clock; gradients of weights are 1.02 times too large.", source="time"),
    unseeded("hash", "unreduced_bias", "The order of a set of words; a bias's gradient is not reduced over dp.", "pass-or-said", source="hash"),
    unseeded("address", "loss_101", "A seed from an object's address; the loss is 1.01 times too large.", "pass-or-said", source="address"),
)  # fmt: skip


def conditioned(name: str, fault: str, what: str, expect: Any = SAID, clean: Any = "pass-or-said", settings: Any = None, point: Any = DP, **args: Any) -> Idea:  # fmt: skip
    return Idea(
        f"conditioned-{name}",
        "widen",
        "hunt_conditioned",
        point,
        args,
        fault,
        what,
        expect,
        settings or {},
        clean,
    )


CONDITIONED = (
    conditioned("cancel", "head_101", "A million is added and taken off; the head's gradient is 1.01 times too large.", FAIL, kind="cancel", strength=1e6),
    conditioned("cancel-most", "before_110", "1e13 is added and taken off, which leaves three digits; the gradient before it is 1.1 times too large.", settings={"dtypes": ["float64"]}, kind="cancel", strength=1e13),
    conditioned("variance", "unreduced_before", "The variance as a difference of two means; a bias's gradient is not reduced over dp.", kind="variance", strength=1e5),
    conditioned("solve", "loss_101", "A system with the Hilbert matrix; the loss is 1.01 times too large.", kind="solve", strength=1e-3),
    conditioned("solve-plain", "unreduced_plain", "A system with the Hilbert matrix; a bias of the other branch is not reduced over dp.", kind="solve", strength=1e-8),
    conditioned("eigen", "before_110", "Eigenvectors of close eigenvalues; the gradient before them is 1.1 times too large.", kind="eigen", strength=1e-4),
    conditioned("softmax", "averaged", "A saturated softmax, whose gradients are next to zero; the reduction over dp averages a sum.", FAIL, "pass", kind="softmax", strength=300.0),
    conditioned("norm", "head_101", "The norm of rows that are almost constant; the head's gradient is 1.01 times too large.", kind="norm", strength=1e-4),
    conditioned("chaos-short", "loss_101", "30 rounds of the logistic map; the loss is 1.01 times too large.", kind="chaos", strength=30.0),
    conditioned("chaos-long", "unreduced_plain", "80 rounds of the logistic map, after which no digit is left; a bias of the other branch is not reduced over dp.", settings={"dtypes": ["float64"]}, kind="chaos", strength=80.0),
    conditioned("tiny-float32", "averaged", "Gradients near the smallest numbers of float32; the reduction over dp averages a sum.", clean="pass-or-said", settings={"dtypes": ["float32"]}, kind="tiny", scale=1e-36),
    conditioned("tiny-float16", "before_110", "Gradients near the smallest numbers of float16; one is 1.1 times too large.", settings={"dtypes": ["float16"]}, point=DP | {"dtype": "float16"}, kind="tiny", scale=1e-4),
)  # fmt: skip


def clipping(
    name: str, fault: str, what: str, expect: Any = SAID, point: Any = TP, **args: Any
) -> Idea:
    return Idea(f"clipping-{name}", "other", "hunt_clipping", point, args, fault, what, expect)


CLIPPING = (
    clipping("torch-shard", "shard_norm", "torch's function clips by the norm of this rank's shards; the limit is never reached.", code="torch", limit=1e4),
    clipping("torch-twice", "counted_twice", "Replicated gradients count once for each tp rank; the limit is never reached.", code="torch", limit=100.0, hidden=8),
    clipping("torch-before-dp", "before_reduce", "The norm is taken before the sum over dp; the limit is never reached.", point=DP, code="torch", limit=1e3, hidden=32),
    clipping("own-shard", "shard_norm", "The program's own code clips by the norm of this rank's shards; the limit is never reached.", code="own", limit=1e4),
    clipping("own-shard-wide", "shard_norm", "The same at tp=2 dp=2, with a norm that the program tells by ctx.before_clip.", point=TP | DP, code="told", limit=50.0, hidden=32),
    clipping("own-twice-hook", "counted_twice", "A hook of the optimizer clips, and counts replicated gradients twice; the limit is never reached.", code="hook", limit=1e3, hidden=8),
    clipping("skip-spike", "shard_norm", "A step is omitted if the norm is too large; the norm is this rank's, and no step is omitted.", code="skip", limit=1e3),
    clipping("reported", "counted_twice", "The wrong norm is reported, and the limit is never reached.", FAIL, code="own", report=True),
    clipping("reached", "shard_norm", "Each rank clips by the norm of its shards, and the limit is reached.", FAIL, code="own", limit=0.05),
)  # fmt: skip


def average(name: str, fault: str, what: str, expect: Any = SAID, **args: Any) -> Idea:
    return Idea(f"average-{name}", "exclude", "hunt_average", DP, args, fault, what, expect)


AVERAGES = (
    average("copy-decay", "decay", "The average in a copy of the model decays by 0.9 instead of 0.99.", kind="copy"),
    average("swa-decay", "decay", "torch's AveragedModel is given the wrong decay.", kind="swa", hidden=16),
    average("dict-decay", "decay", "The average in a dict of tensors decays by 0.9, in a single step.", kind="dict", steps=1, hidden=8),
    average("no-bias", "no_bias", "The average leaves out biases.", kind="dict"),
    average("before-step", "before_step", "The average is made before the optimizer's step.", kind="copy"),
    average("each-microbatch", "each_microbatch", "The average is made once for each micro-batch too.", kind="swa"),
    average("rank1", "rank1", "Rank 1 does not make the average.", kind="dict"),
    average("teacher", "decay", "The average is the teacher in the loss of the second step.", FAIL, teacher=True),
    average("teacher-one-step", "decay", "The average is the teacher in the loss, but there is one step only.", teacher=True, steps=1),
)  # fmt: skip


def steps(name: str, mechanism: Mechanism, fault: str, what: str, expect: Any = SAID, settings: Any = None, **args: Any) -> Idea:  # fmt: skip
    return Idea(
        f"steps-{name}", mechanism, "hunt_steps", DP, args, fault, what, expect, settings or {}
    )


# Every name of an inconclusive check.
ALL_CHECKS = [
    "compared",
    "gradients-compared",
    "coverage",
    "reference",
    "reference-finite",
    "gradients",
    "moved",
    "dp-inputs",
    "tp-inputs",
    "in-effect",
    "skipped-step",
    "dropout",
    "zeros",
    "sensitive",
    "diverged",
    "measured",
    "narrowed",
    "sketched",
]

STEPS = (
    steps("no-zero", "other", "no_zero", "zero_grad is missing, and there is one step only.", steps=1),
    steps("no-zero-second", "other", "no_zero_second", "Only the first of two optimizers zeroes its gradients, in one step.", steps=1, optimizer="two", hidden=16),
    steps("no-zero-main", "other", "no_zero_main", "The buffers in which gradients are added up are not zeroed, in one step.", steps=1, main_gradients=True, optimizer="sgd"),
    steps("no-zero-two-steps", "other", "no_zero", "zero_grad is missing, and there are two steps.", FAIL),
    steps("schedule-twice", "exclude", "schedule_twice", "The schedule advances twice in a step, and there is one step only.", steps=1, schedule="linear"),
    steps("schedule-late", "exclude", "schedule_twice", "The schedule advances twice in a step; its rate falls after the last step only.", schedule="late", steps=1, optimizer="momentum"),
    steps("schedule-rank1", "exclude", "schedule_rank1", "The schedule does not advance on rank 1, and there is one step only.", steps=1, schedule="linear"),
    steps("schedule-two-steps", "exclude", "schedule_twice", "The schedule advances twice in a step, and there are two.", FAIL, schedule="linear"),
    steps("schedule-per-microbatch", "other", "schedule_per_microbatch", "The schedule advances with each micro-batch.", FAIL, schedule="linear"),
    steps("momentum", "other", "momentum", "A momentum of 0.5 instead of 0.9, which a first step does not show.", steps=1, optimizer="momentum"),
    steps("dampening", "other", "dampening", "Dampening, which a first step does not show.", steps=1, optimizer="momentum"),
    steps("no-momentum", "skip", "no_momentum", "No momentum, so that the candidate has no state of the optimizer; in one step.", steps=1, optimizer="momentum"),
    steps("no-amsgrad", "skip", "no_amsgrad", "No amsgrad, so that the candidate lacks one of three states; in one step.", steps=1, optimizer="amsgrad"),
    steps("no-amsgrad-two", "skip", "no_amsgrad", "No amsgrad, in two steps.", optimizer="amsgrad"),
    steps("decayed-bias", "other", "decayed_bias", "Biases are in a group with weight decay, but they are zero in the only step.", steps=1, optimizer="groups", zero_bias=True),
    steps("decayed-bias-two", "other", "decayed_bias", "Biases are in a group with weight decay, in two steps.", FAIL, optimizer="groups", zero_bias=True),
    steps("beta2", "other", "beta2", "Adam's second beta is wrong, which the first update does not show.", FAIL, steps=1),
    steps("eps", "other", "eps", "Adam's epsilon is 100 times too large.", FAIL),
    steps("adam-factor", "other", "adam_factor", "A gradient is twice too large, which Adam's first update does not show.", FAIL, steps=1),
    steps("adam-count", "skip", "adam_count", "Adam's count of steps is one ahead after the last step.", steps=2),
    steps("frozen-bias", "exclude", "frozen_bias", "A bias has no gradient in the candidate.", FAIL),
    steps("last-step", "other", "last_step", "A gradient is not reduced in the last of three steps.", FAIL, steps=3),
    steps("last-microbatch", "other", "last_microbatch", "The loss that is differentiated is 1.01 times too large in the very last micro-batch.", FAIL, microbatches=8),
    steps("rank1-rate", "other", "rank1_lr", "Rank 1 takes a larger last step.", FAIL),
    steps("rank1-after", "other", "rank1_after", "A weight of rank 1 changes after the last step.", steps=2),
    steps("bound-one-step", "other", "bound", "Weights are clamped after the step by a wrong bound, and there is one step only.", steps=1, project=True),
    steps("bound", "other", "bound", "Weights are clamped after each step by a wrong bound.", FAIL, project=True),
    steps("accept-all", "skip", "last_step", "All names of inconclusive checks are accepted; a gradient is not reduced in the last step.", FAIL, {"accept": ALL_CHECKS}),
    steps("accept-coverage", "skip", "frozen_bias", "Coverage is accepted; a bias has no gradient in the candidate.", FAIL, {"accept": ["coverage", "in-effect"]}),
    steps("loosen-all", "widen", "last_step", "Everything is loosened a hundredfold; a gradient is not reduced in the last step.", FAIL, {"loosen": [{"tensors": "*", "factor": 100, "reason": "a test of loosening"}]}),
    steps("loosen-other", "widen", "adam_factor", "Biases are loosened a millionfold; a norm's weight has a wrong gradient.", FAIL, {"loosen": [{"tensors": "*.bias", "factor": 1000000, "reason": "a test of loosening"}]}),
    steps("kinds-activation", "skip", "adam_factor", "Only activations are recorded; a gradient is wrong.", SAID, {"settings": {"record_kinds": ("activation", "loss")}, "accept": ["gradients-compared"]}, steps=1),
    steps("kinds-parameter", "skip", "beta2", "Only parameters are recorded; the optimizer is wrong.", SAID, {"settings": {"record_kinds": ("param",)}, "accept": ["gradients-compared"]}, steps=1),
    steps("modules-none", "skip", "last_microbatch", "No module's activations are recorded; a loss is wrong.", FAIL, {"settings": {"record_modules": ("nothing",)}}),
    steps("sketch", "skip", "adam_factor", "Only sketches are kept; a gradient is wrong.", FAIL, {"settings": {"record": "sketch"}}, hidden=64, steps=1),
)  # fmt: skip


def outside(name: str, kind: str, fault: str, what: str, expect: Any = SAID, number: int = 1, clean: Any = "pass-or-said") -> Idea:  # fmt: skip
    return Idea(
        f"outside-{name}",
        "exclude",
        "hunt_outside",
        DP,
        {"kind": kind, "steps": number},
        fault,
        what,
        expect,
        {},
        clean,
    )


OUTSIDE = (
    outside("gan", "gan", "judge_unreduced", "A second network, unwatched, is not reduced over dp; one step."),
    outside("gan-two", "gan", "judge_unreduced", "A second network, unwatched, is not reduced over dp; two steps.", FAIL, 2, "pass"),
    outside("loss-weights", "loss_weights", "weights_unreduced", "Learned weights of losses are not reduced over dp; one step."),
    outside("loss-weights-two", "loss_weights", "weights_unreduced", "Learned weights of losses are not reduced over dp; two steps.", FAIL, 2),
    outside("functional", "functional", "functional_factor", "The tensors that are trained are given to functional_call, and one gradient is doubled; one step."),
    outside("functional-two", "functional", "functional_factor", "The same in two steps.", SAID, 2),
    outside("unregistered", "unregistered", "gate_unreduced", "A gate in a plain list is not reduced over dp; one step."),
    outside("unregistered-two", "unregistered", "gate_unreduced", "A gate in a plain list is not reduced over dp; two steps.", FAIL, 2),
    outside("head", "backbone", "head_unreduced", "Only the backbone is watched, and the head is not reduced over dp; one step."),
    outside("head-two", "backbone", "head_unreduced", "Only the backbone is watched, and the head is not reduced over dp; two steps.", FAIL, 2),
    outside("second-optimizer", "second_optimizer", "second_rate", "A second optimizer, which is not watched, has another rate; one step.", FAIL),
    outside("replaced", "replaced", "new_head_factor", "The head is replaced after the model is watched, and its gradient is doubled; one step."),
    outside("adapter", "adapter", "adapter_unreduced", "An adapter is added after the model is watched, and half of it is not reduced; two steps.", SAID, 2),
    outside("queue", "queue", "own_keys", "The queue of negatives takes only the rank's own; one step."),
    outside("queue-two", "queue", "own_keys", "The queue of negatives takes only the rank's own; two steps.", FAIL, 2, "pass"),
    outside("baseline", "baseline", "local_baseline", "A moving mean, a Python number, is the rank's own; one step."),
    outside("baseline-two", "baseline", "local_baseline", "A moving mean, a Python number, is the rank's own; two steps.", FAIL, 2, "pass"),
    outside("tuning", "tuning", "growth", "An optimizer's step size, a Python number, grows too fast; one step."),
    outside("tuning-two", "tuning", "growth", "An optimizer's step size, a Python number, grows too fast; two steps.", FAIL, 2, "pass"),
    outside("statistics", "preconditioned", "doubled_statistics", "Preconditioners in a list are twice too large, before they are used; two steps.", SAID, 2),
    outside("statistics-used", "preconditioned", "doubled_statistics", "Preconditioners in a list are twice too large, and used in the third step.", FAIL, 3),
)  # fmt: skip


def tensors(name: str, mechanism: Mechanism, kind: str, fault: str, what: str, expect: Any = FAIL, clean: Any = "pass", **args: Any) -> Idea:  # fmt: skip
    return Idea(
        f"tensors-{name}",
        mechanism,
        "hunt_tensors",
        DP,
        {"kind": kind} | args,
        fault,
        what,
        expect,
        {},
        clean,
    )


TENSORS = (
    tensors("imaginary", "skip", "complex", "imaginary", "The imaginary part of a complex weight's gradient is 1.5 times too large."),
    tensors("conjugate", "skip", "spectrum", "conjugate", "A module returns the conjugate of a complex spectrum, of which only the absolute value is used.", SAID),
    tensors("bucket", "skip", "integer", "bucket", "A module's integer output is wrong, and the table behind it has equal rows."),
    tensors("infinite", "skip", "infinite", "infinite_scores", "Scores beside infinities are 1.01 times too large.", clean="pass-or-said"),
    tensors("undefined", "skip", "undefined", "undefined_rows", "Values beside NaN are 1.01 times too large.", clean="pass-or-said"),
    tensors("object", "exclude", "object", "detached_gate", "A tensor in an object of an own class is detached from the graph."),
    tensors("sparse-row", "skip", "sparse", "sparse_row", "One row of a sparse gradient is 1.5 times too large.", steps=1),
    tensors("sparse-factor", "skip", "sparse", "sparse_factor", "A sparse gradient is 1.01 times too large."),
    tensors("no-gradient", "exclude", "unused", "no_gradient", "An unused layer has no gradient instead of zeros, so AdamW does not decay it.", optimizer="adamw"),
    tensors("unused-rows", "exclude", "plain", "unused_rows", "Rows of the embedding that no token uses shrink after the step."),
    tensors("unused-row-state", "exclude", "plain", "unused_row_state", "The optimizer's state of a row that no token uses is wrong.", optimizer="adamw"),
    tensors("second-call", "exclude", "twice", "second_call", "The first of two calls of a module is detached from the graph."),
    tensors("direct", "exclude", "direct", "direct", "A call of `forward`, which no hook sees, is detached from the graph."),
    tensors("table", "exclude", "table", "table", "A table of positions is wrong beyond the length of the test's batches.", SAID),
    tensors("counter", "skip", "counter", "counter", "A count in an integer buffer advances twice with each batch.", SAID),
    tensors("attribute", "exclude", "attribute", "attribute", "A count in a Python number advances twice; the schedule it drives acts later.", SAID),
    tensors("attribute-used", "exclude", "attribute", "attribute", "A count in a Python number advances twice; the schedule it drives acts in the third of four steps.", steps=4, clean="pass-or-said"),
    tensors("statistics", "exclude", "statistics", "frozen_statistics", "Rank 1 does not update the running statistics of its batch norm.", SAID),
)  # fmt: skip


def layouts(name: str, fault: str, what: str, expect: Any = FAIL, clean: Any = "pass", settings: Any = None, **args: Any) -> Idea:  # fmt: skip
    return Idea(
        f"layouts-{name}",
        "layout",
        "hunt_layouts",
        TP,
        args,
        fault,
        what,
        expect,
        settings or {},
        clean,
    )


# What annotations that declare all outputs local make inconclusive.
ACCEPTED = {"accept": ["coverage:activation", "coverage:activation_grad"]}


LAYOUTS = (
    layouts("transposed", "transposed", "A square weight is applied transposed."),
    layouts("transposed-local", "transposed", "A square weight is applied transposed, and all outputs are declared to belong to a rank.", layouts="local", settings=ACCEPTED),
    layouts("equal-exchanged", "exchanged", "Shards have equal values, and the ranks exchange their gradients.", equal=True),
    layouts("equal-averaged", "averaged_shards", "Shards have equal values, and the gradient of a cut bias is averaged over tp.", equal=True),
    layouts("equal-gain", "gain_of_rank_0", "Both ranks use the first half of a gain whose values are all one.", equal=True),
    layouts("exchanged", "exchanged", "The ranks exchange the gradients of a cut weight; layouts are attributes.", attributes=True),
    layouts("bias-in-sum", "bias_in_sum", "A row parallel bias, which is zero at first, counts once for each rank; one step.", SAID, steps=1),
    layouts("bias-in-sum-two", "bias_in_sum", "A row parallel bias, which is zero at first, counts once for each rank; two steps."),
    layouts("norm-not-summed", "norm_not_summed", "A sum over tp is declared for a gradient, and the program does not make it.", layouts="partial"),
    layouts("untied", "untied", "The head has a copy of the embedding's weight instead of the weight itself.", tied=True),
    layouts("untied-one-step", "untied", "The same in one step.", tied=True, steps=1),
    layouts("uneven", "last_column", "33 columns over two ranks; the last column of rank 0 has no gradient.", inner=33, clean="pass-or-said"),
    layouts("rank1-norm", "rank1_norm", "A replicated weight drifts on rank 1."),
    layouts("rank1-norm-local", "rank1_norm", "A replicated weight drifts on rank 1 in one step, and all outputs are declared to belong to a rank.", layouts="local", settings=ACCEPTED, steps=1),
)  # fmt: skip


def precision(name: str, mechanism: Mechanism, fault: str, what: str, expect: Any = FAIL, point: Any = DP, settings: Any = None, **args: Any) -> Idea:  # fmt: skip
    return Idea(
        f"precision-{name}",
        mechanism,
        "hunt_precision",
        point,
        args,
        fault,
        what,
        expect,
        settings or {},
    )


BF16 = DP | {"dtype": "bfloat16"}
PRECISION = (
    precision("fused-rows", "skip", "fused_rows", "Rows of a weight have no gradient in the code path of bfloat16.", point=BF16),
    precision("fused-scale", "widen", "fused_scale", "An output is 1.05 times too large in the code path of bfloat16.", point=BF16),
    precision("bfloat16-only", "widen", "bias_110", "A gradient is 1.1 times too large, judged in bfloat16 alone.", point=BF16, settings={"dtypes": ["bfloat16"]}),
    precision("no-float64", "skip", "weight_1001", "A gradient is 1.001 times too large; the program runs in float32 only.", only="float32"),
    precision("cast", "skip", "cast", "Activations are cast to bfloat16 and back in the candidate."),
    precision("communication", "widen", "narrow_communication", "Gradients are communicated in bfloat16 in a recipe of float32."),
    precision("narrow-sum", "skip", "narrow_sum", "Main gradients in float32 are rounded to bfloat16 after each micro-batch.", SAID, BF16, master=True),
    precision("master-lost", "widen", "master_lost", "Master weights are overwritten by the rounded parameters.", SAID, BF16, master=True, steps=3),
    precision("autocast-loss", "skip", "loss_in_autocast", "The loss is computed from outputs in bfloat16 in the candidate.", FAIL, autocast=True),
    precision("autocast-bias", "widen", "bias_110", "A gradient is 1.1 times too large behind autocast, judged in float32 alone.", settings={"dtypes": ["float32"]}, autocast=True),
    precision("scaler-twice", "exclude", "updated_twice", "The scale of the loss is set to another value after each step.", SAID, scaler=True, steps=1),
    precision("scaler-clip", "other", "clip_scaled", "Gradients are clipped before they are unscaled; the limit is never reached.", SAID, scaler=True, limit=1e6),
)  # fmt: skip


def random_numbers(name: str, fault: str, what: str, point: Any = DP, **args: Any) -> Idea:
    return Idea(f"random-{name}", "other", "hunt_random", point, args, fault, what, FAIL)


RANDOM = (
    random_numbers(
        "local-seed", "local_seed", "Masks follow from the rank's own count of micro-batches."
    ),
    random_numbers(
        "same-each-step", "same_each_step", "Masks are those of the first step in each step."
    ),
    random_numbers("second-p", "second_p", "The second dropout has another probability."),
    random_numbers("unscaled", "unscaled", "The first dropout does not scale what it keeps."),
    random_numbers("rank1-eval", "rank1_eval", "Rank 1 trains in evaluation mode."),
    random_numbers(
        "drawn-again",
        "drawn_again",
        "The recomputation in the backward draws masks of its own.",
        DP | {"recompute": True},
    ),
    random_numbers(
        "bias", "bias_101", "A bias's gradient is 1.01 times too large behind dropout.", p=0.5
    ),
)


def experts(
    name: str, mechanism: Mechanism, fault: str, what: str, expect: Any = FAIL, settings: Any = None
) -> Idea:
    return Idea(
        f"experts-{name}", mechanism, "hunt_experts", DP, {}, fault, what, expect, settings or {}
    )


F32 = {"dtypes": ["float32"]}
EXPERTS = (
    experts(
        "random-choice",
        "widen",
        "random_tie_break",
        "Noise is added to the scores before the choice, judged in float32.",
        settings=F32,
    ),
    experts(
        "biased",
        "widen",
        "biased",
        "Rank 1 prefers the first expert, judged in float32, in which choices are those of the reference.",
        settings=F32,
    ),
    experts(
        "least",
        "widen",
        "least",
        "The experts with the least scores are chosen, judged in float32.",
        settings=F32,
    ),
    experts(
        "detached",
        "other",
        "detached_router",
        "The weights of the chosen experts are detached from the graph.",
    ),
    experts(
        "dropped", "other", "dropped_second", "The second expert of each token counts nothing."
    ),
    experts(
        "no-balance",
        "other",
        "no_balance",
        "The balancing loss is reported, and not differentiated.",
    ),
    experts(
        "last-expert",
        "other",
        "last_expert",
        "The last expert's gradients are not reduced over dp.",
    ),
)


def pipeline(
    name: str, mechanism: Mechanism, fault: str, what: str, expect: Any = FAIL, **args: Any
) -> Idea:
    return Idea(
        f"pipeline-{name}", mechanism, "hunt_pipeline", {"pp": 2}, args, fault, what, expect
    )


PIPELINE = (
    pipeline("stage-rate", "other", "stage_rate", "The last stage has another learning rate."),
    pipeline(
        "last-backward",
        "other",
        "last_backward",
        "The first stage gets no gradient of the very last micro-batch.",
    ),
    pipeline(
        "stale-gradient",
        "other",
        "stale_gradient",
        "The first stage gets the gradient of the micro-batch before.",
    ),
    pipeline(
        "final-norm",
        "other",
        "final_norm",
        "The gradient of the last stage's norm is 1.01 times too large.",
        layers=2,
    ),
    pipeline(
        "no-zero-stage",
        "other",
        "first_stage_no_zero",
        "The first stage does not zero its gradients, and there is one step only.",
        SAID,
        steps=1,
    ),
)


def wrappers(
    name: str,
    mechanism: Mechanism,
    fault: str,
    what: str,
    expect: Any = FAIL,
    point: Any = DP,
    **args: Any,
) -> Idea:
    return Idea(f"wrappers-{name}", mechanism, "hunt_wrappers", point, args, fault, what, expect)


WRAPPERS = (
    wrappers("bypassed", "layout", "bypassed", "The wrapped module is called instead of DistributedDataParallel.", ddp=True),
    wrappers("ignored", "layout", "ignored", "DistributedDataParallel ignores a bias, which nobody else reduces.", ddp=True),
    wrappers("never-synced", "layout", "never_synced", "Gradients are not synchronised in the last step.", ddp=True),
    wrappers("hook", "layout", "hook", "A communication hook sums in bfloat16 instead of averaging.", ddp=True),
    wrappers("magnitude", "exclude", "magnitude", "The gradient of a weight norm's magnitude is 1.01 times too large.", normed=True),
    wrappers("compiled", "skip", "inside_region", "Features are detached from the graph inside a compiled region.", point=DP | {"compile": True}),
    Idea("in-backward-rate", "skip", "hunt_in_backward", DP, {}, "rate", "An optimizer in the backward has another rate for one weight; gradients are gone when the step ends.", FAIL, {}, "pass-or-said"),
    Idea("in-backward-unreduced", "skip", "hunt_in_backward", DP, {"steps": 1}, "unreduced", "An optimizer in the backward does not reduce a bias; one step.", FAIL, {}, "pass-or-said"),
)  # fmt: skip


def whole_step(name: str, fault: str, what: str, **args: Any) -> Idea:
    return Idea(f"whole-step-{name}", "skip", "hunt_whole_step", DP, args, fault, what, FAIL)


WHOLE_STEPS = (
    whole_step("repeated", "repeated", "A rank repeats an example instead of its last one."),
    whole_step(
        "local-count",
        "local_count",
        "A mean over the targets that count divides by the rank's own count.",
        weighted=True,
    ),
    whole_step(
        "last-batch", "last_batch", "The last batch of a rank is not differentiated.", report=False
    ),
    whole_step("averaged", "averaged", "The reduction averages a sum, which Adam does not show."),
    whole_step("norm", "norm_101", "A norm's gradient is 1.01 times too large.", weighted=True),
)


def cached(story: str, what: str, expect: Any = FAIL) -> Idea:
    return Idea(
        f"cache-{story.replace('_', '-')}",
        "cache",
        "hunt_cache",
        {},
        {"story": story},
        "stale",
        what,
        expect,
    )


CACHE = (
    cached("helper_module", "A constant of an imported module changes."),
    cached("second_hand", "A constant changes behind a package's star imports."),
    cached("late_import", "A module that is imported within the function changes."),
    cached("computed_import", "A module that is imported by a computed name changes."),
    cached("executed_file", "A file of Python that is executed, not imported, changes.", SAID),
    cached(
        "loaded_from_location", "A module that is loaded from a file, under no name, changes.", SAID
    ),
    cached("outside_package", "A package of another project, without a version, changes."),
    cached("module_becomes_package", "A package takes the place of a module of its name."),
    cached("other_path", "Another folder comes first on the search path."),
    cached("linked_module", "A module that is a symbolic link points to another file."),
    cached("data_file", "A data file changes, which nobody names to the cache.", SAID),
    cached("named_data_file", "A data file that is named changes, and keeps its size and time."),
    cached("new_named_file", "A pattern that names files matches a new one."),
    cached("yaml_file", "A recipe in YAML changes, which nobody names to the cache.", SAID),
    cached(
        "environment",
        "A variable of the environment changes, which nobody names to the cache.",
        SAID,
    ),
    cached(
        "named_environment",
        "A variable of the environment that is named changes from unset to set.",
    ),
    cached("seed", "The seed on the command line changes."),
    cached("argument", "An argument in the marker changes."),
    cached("working_directory", "A relative path comes to mean another file."),
    cached("script_arguments", "An argument of a script changes."),
    cached("script_helper", "A module that a script imports changes."),
    cached("two_workers", "A helper changes between two runs with pytest-xdist."),
    cached("deleted_bytecode", "A helper changes, and keeps its size and time."),
    cached("earlier_commit", "A helper changes and changes back, while a fault comes in."),
)

IDEAS: tuple[Idea, ...] = (
    *QUANTISED,
    *UNSEEDED,
    *CONDITIONED,
    *CLIPPING,
    *AVERAGES,
    *STEPS,
    *OUTSIDE,
    *TENSORS,
    *LAYOUTS,
    *PRECISION,
    *RANDOM,
    *EXPERTS,
    *PIPELINE,
    *WRAPPERS,
    *WHOLE_STEPS,
    *CACHE,
)
assert len({idea.name for idea in IDEAS}) == len(IDEAS)
