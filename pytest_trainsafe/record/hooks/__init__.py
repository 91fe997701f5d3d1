"""Hooks that record the values that a model's modules compute.

module_hooks  attaches hooks to modules, compiled ones included; every file here uses it
activations   outputs of modules, and the gradients that reach them
outputs       the tensors in an output
not_recorded  values in an output that are not recorded
buffers       running states
decisions     choices that rounding may change; `choices` finds those inside a forward
casts         casts that limit the precision of a Run
consequences  whether recomputation and compilation took effect
changes       what a Run may change in the values that a model computes
"""
