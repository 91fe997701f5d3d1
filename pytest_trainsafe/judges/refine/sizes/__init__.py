"""Shrinks the shapes of graphs, so that they can be evaluated in seconds.

Every size that occurs in the graphs becomes a smaller one, the same for all its occurrences.

    sites      the integers of a node that are sizes
    equations  what must stay true between sizes: products of views, sums of splits, ratios of cuts
    solve      small sizes for which all equations hold
    shrink     the graphs with small sizes
"""
