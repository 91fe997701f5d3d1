"""Relations: how a sequential tensor is made of the ranks' tensors.

relation  the steps of a relation, and its text
parse     a relation from its text
combine   the sequential tensor that a relation makes of the ranks' tensors
cut       the ranks' tensors that fit a sequential one: the values of inputs
"""
