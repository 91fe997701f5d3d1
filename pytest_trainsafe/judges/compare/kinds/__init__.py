"""Kinds of tensors that have rules of their own.

accumulated      gradients that ranks add up in a narrow dtype
buffers          which ranks must have the reference's value of a buffer
dealt            gradients of parameters cut over ranks with other micro-batches
decisions        choices, such as those of a router
model_inputs     inputs of the model, whose layouts nobody declares
own_gradients    what each rank's own micro-batches give
reduced_in_step  gradients that the optimizer reduces inside its step
terms            gradients of activations of which each rank holds a term
"""
