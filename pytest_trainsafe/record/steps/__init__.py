"""How a program marks its steps and micro-batches.

marks         steps and micro-batches that one call opens and another closes
microbatches  the global numbers of a step's micro-batches
pipelining    the micro-batches of torch.distributed.pipelining
"""
