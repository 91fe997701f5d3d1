"""Slips in steps of optimizers and in what a backward begins with."""

from __future__ import annotations

from pytest_trainsafe.judges.learn.events.known.known import Known

STEPS = {
    # Updates.
    "updates-rounded": Known(
        "steps move most weights that have a gradient",
        "weights of low precision are larger than the step by more than their precision, so the "
        "updates are rounded away: keep weights in float32 and compute in autocast",
    ),
    "eps-vanishes": Known(
        "the eps of an optimizer is not zero in the precision of its weights",
        "the default eps of Adam is zero in float16",
    ),
    "rate-zero": Known(
        "the learning rate is not zero in three steps or two epochs in succession",
        "the factor of a schedule is divided as an integer, or the schedule has ended",
    ),
    "rates-merged": Known(
        "groups of an optimizer that were made with different rates keep different ones",
        "a warm-up or a decay by hand sets one rate for all groups, or a schedule gets one highest "
        "rate",
    ),
    "zeros-revived": Known(
        "weights that are zero, and have a gradient of zero, stay zero",
        "pruning masks the gradient, and momentum or moments from before move the weight",
    ),
    "rates-parted": Known(
        "groups of an optimizer that begin with one rate follow a schedule by hand together",
        "the rate is set after the loop over the groups, or for the first group only",
    ),
    "rate-without-effect": Known(
        "a learning rate is set as lr of a group",
        "optimizer.lr and a group's learning_rate are no settings of the optimizer",
    ),
    "plateau-inverted": Known(
        "ReduceLROnPlateau gets no share that rises while it waits for it to fall",
        "mode='max' is missing for an accuracy",
    ),
    "gradient-always-zero": Known(
        "no parameter that the loss reaches has a gradient of zero in every step",
        "a gate is divided by itself, a softmax has one element only, both factors of an adapter "
        "begin at zero, or a rounding has no straight-through gradient",
    ),
    # Optimizers.
    "optimizer-renewed": Known(
        "an optimizer is not made anew for each step, or for each pass over the data",
        "the optimizer is made inside the loop, so it loses its momentum and its moments",
    ),
    "never-steps": Known(
        "each optimizer whose parameters get gradients steps",
        "one of several optimizers is forgotten, or another one steps twice",
    ),
    "stepped-again": Known(
        "an optimizer does not step twice with the same gradients",
        "step() is called once more, or where no backward has come, as in each micro-batch",
    ),
    "never-graded": Known(
        "each optimizer that steps has had gradients",
        "one of several optimizers holds parameters of another model, or that were replaced",
    ),
    "state-permuted": Known(
        "an optimizer loads the state of each parameter for this parameter",
        "states are loaded by position, and the parameters of the saved optimizer had another "
        "order",
    ),
    "generator-not-resumed": Known(
        "the state of the random generator that a checkpoint has is restored",
        "the state is saved and not set again, so the resumed training draws other numbers",
    ),
    # Windows and roots.
    "window-short": Known(
        "the first step of an optimizer has as many micro-batches as the next ones",
        "the loop steps if i % n == 0, which holds for the first micro-batch already",
    ),
    "mean-divided": Known(
        "the mean of a loss is not divided by its number of examples once more",
        "the loss is averaged already, so gradients are too small by the size of the batch",
    ),
    "window-misdivided": Known(
        "losses of the micro-batches of a step are divided by their number, if by any",
        "the number that they are divided by is not that of the backwards between two steps",
    ),
    "averaged-and-divided": Known(
        "a loss whose gradients DistributedDataParallel averages is not divided by the ranks",
        "the wrapper divides by the number of ranks too, so gradients are too small by it",
    ),
    "partly-scaled": Known(
        "either all losses of a step are scaled, or none",
        "one of several losses is not passed through scaler.scale",
    ),
    "backward-twice": Known(
        "one loss has one backward before its gradients are used",
        "backward is called once more with retain_graph=True, and doubles the gradients",
    ),
    "loss-without-graph": Known(
        "the backward begins with a loss that is computed from the parameters",
        "a new tensor with requires_grad=True is made from the value of the loss",
    ),
    "loss-unused": Known(
        "a loss that is computed with gradients is a part of what a backward begins with",
        "a second loss replaces the first instead of being added, or is not added at all",
        often=True,
    ),
    "reduced-without-gradient": Known(
        "tensors that are reduced for a loss take part in autograd",
        "dist.all_reduce changes the value and not the gradient; torch.distributed.nn has one that "
        "does both",
    ),
    "average-follows": Known(
        "an average of the weights is further from the last ones than a small part of a step",
        "the decay is the share of the new weights: 0.001 where 0.999 is meant",
    ),
    "averaged-again": Known(
        "an average is updated at most once after each step",
        "the update is called for each micro-batch, so the average forgets too fast",
    ),
}
