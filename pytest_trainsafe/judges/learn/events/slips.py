"""The slips that the observer notices: uses of torch's API that are rarely meant.

A slip is said in the roles of training, such as the optimizer, the loss or the model in training,
and not in names of one program.  The observer reports each as a change of the attribute `SLIP` of
an object called `TRAINING`, whose value is the slip's name and what happened; at the end of each
step the attribute is "", so that every program gives examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_trainsafe.judges.learn.events.events import Call, Change, Plain, Value
from pytest_trainsafe.judges.learn.events.setup_text import SETUP

#: The object and the attribute under which slips are recorded.
TRAINING, SLIP = "training", "slip"

#: Attributes that are texts about the training and no values of it.
TEXTS = (SETUP, SLIP)


@dataclass(frozen=True, slots=True)
class Known:
    """A slip: the rule that it breaks, in one sentence, and its usual cause.

    If it is `often` meant, the rule is checked only on programs that were seen to keep it.
    """

    rule: str
    causes: str
    often: bool = False


#: Every slip that may be reported, by name.
SLIPS = {
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
        "an optimizer does not step with gradients of more micro-batches than before",
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
    # Models.
    "unregistered": Known(
        "a module with parameters runs inside a model that contains it",
        "layers are kept in a plain list or dict, so that parameters() leaves them out",
    ),
    "parameter-unregistered": Known(
        "a tensor of a module that gets a gradient is one of its parameters",
        "it is no nn.Parameter, or in a plain list or dict, so that parameters() leaves it out",
    ),
    "evaluated-in-training": Known(
        "a model in training with dropout or batch norms is evaluated in evaluation mode",
        "eval() is missing before the validation, so dropout is active, and batch norms learn from "
        "the validation data",
    ),
    "dropout-in-evaluation": Known(
        "dropout is off in a module in evaluation mode",
        "functional dropout or attention does not get training=self.training",
    ),
    "frozen-norm-learns": Known(
        "a batch norm whose weights are frozen keeps its statistics",
        "train() puts the norms of a frozen part into training mode",
        often=True,
    ),
    "norm-thawed": Known(
        "a norm that the program has put into evaluation mode stays in it",
        "train() on the whole model undoes what eval() on its norms did",
    ),
    "evaluated-with-graph": Known(
        "a model in evaluation mode runs without gradients, or its loss is used by a backward",
        "no_grad is missing in the validation, which keeps the graphs of all its batches",
    ),
    "equal-but-untied": Known(
        "an embedding and a linear layer that begin with equal weights are tied",
        "the weights were copied, or a resize has made new ones, and tying was not repeated",
    ),
    "flag-on-module": Known(
        "requires_grad is set on parameters and not on a module",
        "module.requires_grad = False has no effect; requires_grad_(False) has",
    ),
    "frozen-at-zero": Known(
        "no weight of a model in training is frozen at zero",
        "an adapter that begins at zero was frozen with the rest of the model",
    ),
    "frozen-moved": Known(
        "a frozen parameter of a model in training keeps its value",
        "weight decay by hand, or an adapter that is merged once more than unmerged",
    ),
    "weights-moved": Known(
        "between two steps, trained parameters keep their value",
        "an average or a copy is written into the model and not taken out again",
    ),
    "recomputed-otherwise": Known(
        "recomputation draws the same random numbers as the forward",
        "checkpoint is called with preserve_rng_state=False, so dropout differs in the backward",
    ),
    "adapted-and-trained": Known(
        "a weight to which a trained adapter adds is frozen, if other weights are",
        "the loop that freezes the base model leaves out a weight, such as a packed projection",
    ),
    "dropout-most": Known(
        "dropout in training drops less than four fifths",
        "the share to keep is passed as the share to drop",
    ),
    "teacher-in-training": Known(
        "a model that nobody trains, and that is no average, runs without dropout",
        "eval() is missing for the teacher or the frozen feature extractor",
    ),
    "layers-alike": Known(
        "no two weights of an optimizer begin with the same random numbers",
        "one layer was copied, or a seed is set before each layer, so experts or members are alike",
    ),
    "constant-weight": Known(
        "the elements of a trained weight differ when training begins",
        "an initialisation fills the weight with one number, so all its units learn the same",
    ),
    "padding-attended": Known(
        "attention does not see padding alone",
        "the mask of padding is inverted",
    ),
    "padding-row": Known(
        "the row of the padding in an embedding is zero when training begins",
        "an initialisation of all weights overwrites the row of padding_idx, which never learns",
    ),
    "future-seen": Known(
        "attention does not see the tokens that the labels ask for",
        "the causal mask is missing, or it is the wrong way round",
    ),
    "batch-as-time": Known(
        "a module of sequences gets the examples of a batch in its dimension of the batch",
        "batch_first=True is missing, so the module takes the examples for positions",
    ),
    # Averages.
    "average-never-updated": Known(
        "a copy of the model in training that is evaluated was updated since training began",
        "the average is not updated, or only at the end of the training",
    ),
    "average-lacks-buffers": Known(
        "an average of a model that is evaluated has statistics of batch norms that were updated",
        "the average covers parameters only, and buffers are not copied",
    ),
    "averaged-before-step": Known(
        "an average is updated after the optimizer's step",
        "the update comes between the backward and the step, and lags by a step",
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
    # Data.
    "order-repeated": Known(
        "no two epochs have the same shuffled order",
        "set_epoch is not called, the seed is set again in each epoch, or the generator is made "
        "anew, as after a resume that does not restore it",
    ),
    "batch-repeated": Known(
        "a loader that feeds the training does not begin with the same batch in each step",
        "next(iter(loader)) in the loop makes a new iterator for each step",
    ),
    "one-label": Known(
        "batches of a training set that is not shuffled have more than one label",
        "the data are sorted by label, and the loader lacks shuffle=True",
    ),
    "seeded-again": Known(
        "no seed that was set before is set again during the training",
        "a function that sets all seeds is called in each epoch or step, and repeats the draws",
    ),
    "orders-apart": Known(
        "a loader of labels alone has the order of the loader that it is read with",
        "inputs and labels are shuffled by two loaders, which draw two orders",
    ),
    "workers-alike": Known(
        "the workers of a loader do not share a random generator of the dataset",
        "each worker has a copy of the generator, so they draw the same: worker_init_fn is missing",
    ),
    "data-overwritten": Known(
        "reading a batch does not change what the dataset has",
        "a transform works in place on the stored data, which change with each epoch",
    ),
    "batches-reused": Known(
        "batches of an epoch that has ended are not used again",
        "itertools.cycle or a list keeps the first epoch's batches, which are not shuffled again",
    ),
    "batches-doubled": Known(
        "the workers of a loader read different batches",
        "an IterableDataset yields all examples in each worker: get_worker_info is not used",
    ),
    "weights-per-class": Known(
        "a weighted sampler has a weight for each example",
        "the weights of the classes are passed, so only the first examples are drawn",
    ),
    "validation-overlaps": Known(
        "no example is in the training set and in the validation set",
        "the data are split twice with different seeds, or the indices overlap",
    ),
    # Loading and initialisation.
    "optimizer-not-resumed": Known(
        "the state of an optimizer that a checkpoint has is loaded before the training goes on",
        "the checkpoint is read before the optimizer exists, or only the model is loaded from it",
    ),
    "nothing-loaded": Known(
        "some key of a state that is loaded fits the model",
        "the keys have another prefix, and strict=False hides it",
    ),
    "ties-broken": Known(
        "loading a state leaves tied parameters tied",
        "load_state_dict(assign=True) replaces each name of a tied parameter by its own tensor",
    ),
    "initialised-after-load": Known(
        "parameters that were loaded are not initialised afterwards",
        "an initialisation of all modules runs after the pretrained weights are loaded",
    ),
    "initialised-in-training": Known(
        "parameters that an optimizer has updated are not initialised again",
        "an initialisation runs again, for example at the start of each call of fit()",
    ),
    "loaded-itself": Known(
        "a state that is loaded is not the model's own, if steps have changed it",
        "state_dict() was kept without a copy, so the best state is always the last one",
    ),
    "prefix-differs": Known(
        "parameters that a state lacks are not in it with another prefix",
        "the keys have another prefix, and strict=False hides it",
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
    "gathered-without-gradient": Known(
        "tensors that are gathered for a loss keep the gradient of this rank's part",
        "all_gather does not take part in autograd; the own part has to be put back, or "
        "torch.distributed.nn is to be used",
    ),
}


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


def slip_in(text: object) -> str:
    """The name of the slip in a value of the attribute; "" if there is none."""
    return str(text).partition(":")[0]
