"""Shrinks the shapes of graphs, so that they can be evaluated in seconds.

Dimensions that an operator relates have one length; each length becomes a smaller one.

    sites      the integers of a node that are sizes
    lengths    lengths as unknowns: which are one, which are products, which are sums
    operators  what each operator says of the lengths of its tensors
    unknowns   the lengths of all graphs, and each size as a sum of them
    solve      small lengths for which all equations hold
    shrink     the graphs with small sizes
"""
