"""Slips in parts of models, and in what models and losses get."""

from __future__ import annotations

from pytest_trainsafe.judges.learn.events.known.known import Known

INPUTS = {
    # Parts of models.
    "checkpoint-without-gradient": Known(
        "the result of a checkpointed part with trained parameters requires gradients",
        "a reentrant checkpoint gets inputs without gradients: use_reentrant=False is missing",
    ),
    "part-without-gradient": Known(
        "a part of the model in training that an optimizer holds runs with gradients",
        "no_grad is around a part of the forward, or decorates it",
    ),
    "made-after-optimizer": Known(
        "parameters that the first forward makes are held by an optimizer",
        "layers are made in forward, and the optimizer was made before it",
    ),
    "layer-repeated": Known(
        "a layer with trained weights is in a Sequential once, and in a list once for each input",
        "[layer] * n repeats one layer instead of making n of them",
    ),
    "eps-as-momentum": Known(
        "the eps of a norm is small",
        "the momentum is passed by position, where the eps is expected",
    ),
    "momentum-inverted": Known(
        "the momentum of a batch norm is the small share of the new batch",
        "the momentum is that of another library, where it is the share that is kept",
    ),
    "statistics-twice": Known(
        "batch norms do not update their statistics in recomputation",
        "activation checkpointing runs the forward of the norm once more",
    ),
    # Sequences.
    "padding-unmasked": Known(
        "attention without a mask gets no padded sequences",
        "key_padding_mask is missing, so padding is attended to",
    ),
    "padding-learned": Known(
        "padding is no label of a language model",
        "ignore_index is not the index of the padding",
    ),
    "end-ignored": Known(
        "the token that ends each text is a label",
        "the padding is the end token, and all labels that equal it are ignored, so that a model "
        "never learns to end",
    ),
    "mask-of-numbers": Known(
        "a mask of numbers hides something: it is added to the scores",
        "a mask of 0 and 1 is not of dtype bool, so it adds 1 instead of hiding",
    ),
    "begin-doubled": Known(
        "not all sequences begin with one token twice",
        "the tokenizer and the template both add the token that begins a text",
    ),
    "blank-labelled": Known(
        "the blank is no label of a CTC loss",
        "labels begin at 0, which is the blank",
    ),
    "examples-mixed": Known(
        "the result for one example depends on no other example of the batch",
        "a view, a reshape or an attention takes the examples for positions or features",
    ),
    # Inputs and targets.
    "target-out-of-reach": Known(
        "targets are in the range of the activation that ends the model",
        "targets are not normalised, or the last activation does not fit them",
    ),
    "divergence-averaged": Known(
        "a divergence is a sum over the classes of its distribution",
        "kl_div averages over the classes too: reduction='batchmean', or a sum over them, is meant",
    ),
    "smoothed-twice": Known(
        "labels that a loss is to smooth are not smooth already",
        "label smoothing is applied to the targets and by the loss",
    ),
    "advantage-graded": Known(
        "the advantage by which a logarithm of a probability is multiplied has no gradient",
        "detach() is missing, so the loss of the actor trains the critic as well",
    ),
    "softmax-over-batch": Known(
        "a softmax before a loss is over the classes and not over the batch",
        "dim=0 instead of dim=1",
    ),
    "softmax-not-summed": Known(
        "a softmax by which a product of matrices is weighted is over what the product sums over",
        "dim is that of the queries or heads, or is left out: the weights of a sum add up to 1",
    ),
    "softmax-of-one": Known(
        "a softmax before a loss, or in it, has more than one class",
        "softmax of a single output is always 1; sigmoid is meant",
    ),
    "pixels-unscaled": Known(
        "the first layer gets no pixels from 0 to 255",
        "the images are not divided by 255, or normalised before they are",
    ),
    "channels-mixed": Known(
        "the neighbours of an element in an image are of the same channel",
        "images with the channels last are reshaped instead of permuted",
    ),
    "pixels-twice": Known(
        "the first layer gets no pixels that were divided by 255 twice",
        "a transform scales the images, and so does the loop or another transform",
    ),
    "input-overwritten": Known(
        "a model does not write into data that it gets again",
        "an operator of the forward works in place on a view of the stored data",
    ),
    "state-carried": Known(
        "a recurrent state is not carried to the next batch if the batches are shuffled",
        "the state is kept from batch to batch, as for one long sequence that is read in order",
    ),
    "padding-elsewhere": Known(
        "the padding_idx of an embedding is the token that fills up the texts",
        "the index of the padding is that of another vocabulary",
    ),
    "rows-alike": Known(
        "the examples of a batch differ",
        "the dataset ignores the index, or the batch was made from one example",
    ),
}
