"""Slips in models, their averages, the data and what is loaded."""

from __future__ import annotations

from pytest_trainsafe.judges.learn.events.known.known import Known

MODELS = {
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
    "left-in-evaluation": Known(
        "models of one optimizer that began in training mode stay in it together",
        "after a validation, train() is called for one of several models only",
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
    "flag-misspelt": Known(
        "no attribute of a parameter or a module is called nearly as requires_grad is",
        "the name is misspelt, so nothing is frozen",
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
        "a frozen weight of a layer of torch in training keeps its value",
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
        "the average covers parameters only, and buffers are not copied, or update_bn is missing",
    ),
    "average-rounded": Known(
        "an average of the weights leaves those with which the training began",
        "the average is kept in a narrow dtype, in which a small part of a step rounds to nothing",
    ),
    "averaged-before-step": Known(
        "an average is updated after the optimizer's step",
        "the update comes between the backward and the step, and lags by a step",
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
        "a training does not set a seed again that was set before",
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
        "tied parameters stay tied",
        "load_state_dict(assign=True), or a new Parameter, replaces one name of a tied one",
    ),
    "initialised-after-load": Known(
        "parameters that were loaded are not initialised afterwards, but for last layers",
        "an initialisation of all modules runs after the pretrained weights are loaded",
    ),
    "initialised-in-training": Known(
        "parameters that an optimizer has updated are not initialised again, but for last layers",
        "an initialisation runs again, for example at the start of each call of fit()",
    ),
    "loaded-itself": Known(
        "a state that is loaded is not the model's own, if steps have changed it",
        "state_dict() was kept without a copy, so the best state is always the last one",
    ),
    "prefix-differs": Known(
        "parameters that a state lacks are not in it under another name",
        "the keys have another prefix or were renamed, and strict=False hides it",
    ),
}
