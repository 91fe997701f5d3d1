"""Context parallelism: the sequence is split over cp.

zigzag      which part of the sequence a rank has
attention   attention with all-gathered keys and values
ring        attention with keys and values that are passed round a ring
"""
