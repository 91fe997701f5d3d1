"""A small training library, which programs in `healthy/` and `silent_errors/` import.

It takes the place of a large framework.  The programs in `healthy/` use it as it is.  A program in
`silent_errors/` replaces one part of it by a subclass with an error that a real framework had.  So
a healthy program and one with an error call functions with the same names.

processing   turns texts and images into tensors
generation   greedy decoding within a window of positions
pretrained   initial weights
checkpoint   saves and loads weights
trainer      epochs, gradient accumulation, learning-rate schedule
engine       an engine around a model and its optimizer
flat         all parameters of a module in one flat parameter
devices      copies between devices
sharded      tensor-parallel layers
mixed        an optimizer with float32 master weights
experts      a mixture of experts
"""
