"""What an exact Run does in its ranks: the program computes in numbers without rounding.

rungs  the rung `exact`, and the rung `real`, whose Runs take the decisions
"""
