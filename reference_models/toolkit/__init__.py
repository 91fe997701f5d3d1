"""A small training library: what programs of the corpus import instead of a large framework.

The healthy programs use it as it is.  A silent error of `silent_errors/` replaces one part of it by
a subclass with the error that a real framework had, so that the code that is called has the same
names in both.

`processing` texts and images to tensors; `generation` decoding within a window; `pretrained`
weights at the start; `checkpoint` tensors to files; `trainer` epochs, accumulation, schedule;
`engine` an engine around model and optimizer; `flat` parameters in one buffer; `devices` copies
between devices; `sharded` tensor-parallel layers; `mixed` an optimizer with float32 masters;
`experts` a mixture of experts.
"""
