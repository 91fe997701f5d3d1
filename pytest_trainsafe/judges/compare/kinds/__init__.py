"""Kinds of tensors that have rules of their own.

buffers          which ranks must have the reference's value of a buffer
dealt            gradients of parameters cut over ranks with other micro-batches
decisions        choices, such as those of a router
model_inputs     inputs of the model, whose layouts nobody declares
reduced_in_step  gradients that the optimizer reduces inside its step
"""
