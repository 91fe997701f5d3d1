"""Slips between a loss and the step: gradients, losses, schedules and replicas."""

from __future__ import annotations

from pytest_trainsafe.judges.learn.events.known.known import Known

OPTIMIZATION = {
    # Gradients.
    "clipped-scaled": Known(
        "clipping gets gradients that the gradient scaler has unscaled",
        "scaler.unscale_(optimizer) is missing before the clipping, so the limit is compared with "
        "a norm that is thousands of times too large",
    ),
    "stepped-scaled": Known(
        "an optimizer steps with gradients that the gradient scaler has unscaled",
        "optimizer.step() is called instead of scaler.step(optimizer)",
    ),
    "clipped-nothing": Known(
        "clipping finds gradients",
        "clipping comes before the backward or after zero_grad, or gets a generator that is used "
        "up",
    ),
    "clipped-early": Known(
        "nothing is added to gradients between clipping and the step",
        "clipping is called after each micro-batch, instead of once before the step",
    ),
    "clip-missed": Known(
        "an optimizer whose gradients are clipped steps with clipped gradients",
        "clipping comes before the backward or after the step",
    ),
    "clipped-partly": Known(
        "all gradients that an optimizer steps with are clipped, or none",
        "clipping gets the parameters of one part only",
    ),
    "window-grew": Known(
        "an optimizer steps with no more micro-batches than their losses are divided by",
        "gradients of an incomplete window, such as the last of an epoch, are neither used nor "
        "cleared",
    ),
    "gradients-dropped": Known(
        "gradients are used by a step before they are cleared",
        "zero_grad is called after each micro-batch instead of after each step",
    ),
    "never-reached": Known(
        "the loss reaches the parameters that the optimizer holds",
        "a part of the model runs without gradients, its result is detached, or it is not used",
    ),
    "held-by-nobody": Known(
        "an optimizer holds the last parameters of the model in training, if they get gradients",
        "a parameter group is missing, or the optimizer was made before layers were replaced",
    ),
    "module-held-by-nobody": Known(
        "an optimizer holds a parameter of each module in training that gets gradients",
        "a loss with weights of its own, or a part of the model, is not passed to the optimizer",
    ),
    "thawed-unheld": Known(
        "parameters that are unfrozen during the training are held by an optimizer",
        "the optimizer got the parameters that were trainable when it was made",
    ),
    "stepped-without": Known(
        "the only optimizer steps with gradients if a backward came before",
        "zero_grad comes between the backward and the step, or the optimizer holds parameters that "
        "were replaced, for example by FSDP",
    ),
    "decay-inverted": Known(
        "weight decay is not for biases and norms only",
        "the condition that divides parameters into groups is the wrong way round",
    ),
    "tokens-unweighted": Known(
        "micro-batches of a step are weighted by their numbers of labels, if some are ignored",
        "each micro-batch's loss is averaged over its own tokens, and not over all of the step",
    ),
    "window-summed": Known(
        "the losses of the micro-batches of a step are divided by their number",
        "the loss is not divided by the number of accumulated micro-batches, so gradients are "
        "too large",
    ),
    "penalty-without-graph": Known(
        "a gradient that is a part of the loss is taken with create_graph=True",
        "create_graph=True is missing, so the penalty on the gradient is a constant",
    ),
    "half-unscaled": Known(
        "a loss of a model that runs in autocast to float16 is scaled",
        "the GradScaler is missing, so small gradients become zero",
    ),
    "held-twice": Known(
        "optimizers that step in turn hold no parameters in common",
        "parameters of a shared part are passed to two optimizers, which both update them",
        often=True,
    ),
    "betas-swapped": Known(
        "the first beta of an optimizer is at most the second",
        "the two betas are in the wrong order",
    ),
    # Losses.
    "loss-broadcast": Known(
        "the prediction and the target of a loss do not broadcast against each other",
        "one is of shape [N, 1] and the other of shape [N], so each prediction meets all targets",
    ),
    "loss-activated": Known(
        "a loss gets logits or logarithms, as it expects, and not activated values",
        "softmax or sigmoid is applied before a loss that does so itself, or log_softmax is "
        "missing",
    ),
    "target-outside": Known(
        "targets are in the range that the loss expects",
        "labels are 0 and 1 where 1 and -1 are expected, or masks are not divided by 255",
    ),
    "labels-shifted": Known(
        "the labels of a language model are the next tokens",
        "the labels are not shifted, or shifted in the data and again in the model",
    ),
    # Schedules and scalers.
    "scheduled-ahead": Known(
        "an optimizer steps between two steps of its scheduler",
        "the scheduler steps before the optimizer, for each micro-batch, for each process, or "
        "both per batch and per epoch",
    ),
    "never-scheduled": Known(
        "a scheduler steps", "scheduler.step() is missing, or the scheduler is not used"
    ),
    "schedule-overrun": Known(
        "a cosine schedule ends when its length is reached",
        "T_max is a number of epochs, and the scheduler steps for each batch, or the other way "
        "round",
    ),
    "schedule-unfinished": Known(
        "a schedule whose length is the number of steps steps in each of them",
        "the schedule steps once for each epoch, and its length is counted in steps",
    ),
    "schedule-began-anew": Known(
        "the scheduler of an optimizer whose state was loaded is loaded too",
        "the checkpoint lacks the scheduler's state, so the learning rate begins anew",
    ),
    "rate-lost": Known(
        "an optimizer whose state was loaded steps with the learning rate that was loaded",
        "a scheduler was made after the state was loaded, and set the rate to its first value",
    ),
    "scaler-renewed": Known(
        "an optimizer keeps its gradient scaler",
        "a new GradScaler is made for each epoch, and loses the scale that it has found",
    ),
    "rate-squared": Known(
        "the function of a LambdaLR returns a factor of the learning rate",
        "the function returns the learning rate itself, which is then squared",
    ),
    "metric-as-epoch": Known(
        "a schedule gets no number, or an epoch",
        "scheduler.step(loss) is for ReduceLROnPlateau; other schedules take it for an epoch",
    ),
    "rate-vanished": Known(
        "a schedule in steps keeps the rate above a two-thousandth of its first value",
        "a schedule for epochs steps for each batch",
    ),
    "scaler-not-resumed": Known(
        "the state of a gradient scaler that a checkpoint has is loaded",
        "the scaler's state is saved and not loaded, so scaling begins anew",
    ),
    "scale-updated": Known(
        "gradients are unscaled by the scale that their loss was multiplied with",
        "the scaler is updated after each of several optimizers, instead of once after all",
    ),
    # Replicas.
    "wrapper-bypassed": Known(
        "a model that DistributedDataParallel wraps is trained through the wrapper",
        "the forward goes through .module, so gradients are not averaged",
    ),
    "not-synchronised": Known(
        "the last backward before a step synchronises the gradients",
        "no_sync covers the last micro-batch of a window",
    ),
    "averaged-twice": Known(
        "gradients that DistributedDataParallel has averaged are not reduced again",
        "gradients are reduced by hand although the wrapper does so",
    ),
    "labels-of-another-rank": Known(
        "labels that number gathered examples select those of this rank",
        "arange(n) lacks the offset of the rank, rank * n, so all ranks but one learn wrong pairs",
    ),
    "gathered-without-gradient": Known(
        "tensors that are gathered for a loss keep the gradient of this rank's part",
        "all_gather does not take part in autograd; the own part has to be put back, or "
        "torch.distributed.nn is to be used",
    ),
    "sent-again": Known(
        "a gradient that was sent to another rank is cleared before a backward adds to it",
        "the places of received activations are kept from step to step, and so are their gradients",
    ),
    "count-averaged": Known(
        "a loss that is divided by a count of all ranks is multiplied by their number, where a "
        "wrapper averages its gradients",
        "the wrapper divides by the number of ranks once more, so gradients are too small by it",
    ),
}
