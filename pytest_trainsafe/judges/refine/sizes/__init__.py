"""Shrinks the shapes of graphs, so that they can be evaluated in seconds.

Sizes that must be equal are one variable; each becomes a smaller size.

    sites      the integers of a node that are sizes
    variables  which sizes are one variable
    equations  what must stay true between sizes: products of views, sums of splits, ratios of cuts
    closure    the same between the two sides, where views split and join
    solve      small sizes for which all equations hold
    shrink     the graphs with small sizes
"""
