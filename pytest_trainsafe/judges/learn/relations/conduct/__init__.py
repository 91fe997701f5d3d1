"""Relations on how a loop uses torch, in roles such as the optimizer and the model in training.

mode      a model runs in training mode before an optimizer steps
context   the backward and the optimizer's step are outside of autocast
slip      none of the known slips of training loops happens
graph     the first losses are computed by the same operators
recorded  what `slip` and `graph` share: they judge texts that the observer records
"""
