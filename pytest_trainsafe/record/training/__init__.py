"""Records a training step: gradients, clipping, the optimizer and its state.

parameters         gradients, main gradients, values and optimizer states of parameters
parameter_adapter  where these are, by the attributes of a parameter
contributions      what each micro-batch adds to a gradient
optimizer          finds optimizers, listens to their steps, and finds their state
clipping           detects that a program is about to clip; `unclipped` records the gradients then
reductions         the collectives that reduce gradients; `collectives` writes all of them
written            lines that change gradients in place
unheld             parameters that no optimizer holds
conditions         modules that run with changed parameters or in evaluation mode
left               what a program leaves to steps that the test does not train
"""
