"""Context parallelism: the sequence cut over cp.

zigzag      which part of the sequence a rank has
attention   attention with all-gathered keys and values
ring        attention with keys and values passed round a ring
"""
