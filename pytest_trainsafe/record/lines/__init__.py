"""Notes the lines of a program that reports name.

sites       the lines that call the model, step, construct the optimizer and apply wrappers
placements  the lines that put modules into their places in a model
origins     the lines that make inputs, outputs and the loss
source      the line of a module's class, or of the function that replaces its `forward`
replaced    the function of torch that a program calls, also if the program has replaced it
"""
