"""The watched model: its parts, its canonical names, its layouts and its initial parameters.

parts             the parts of a model that a rank holds, under their names in the whole model
unwatched         what a program keeps beside the watched model
evaluating        whether the program evaluates, by the modes of the parts
inputs            the inputs that a program passes to its model
names             the module and parameter names that a single device would use
parameter_layout  the Layout of a parameter, from the first of all sources that has one
initialize        fills each parameter with values that depend on its name
shard_shapes      the logical shape of parameters, from the shapes of all ranks' shards
consistent        generates those values
"""
