"""Prepares tables of calls and changes for relations, with operations on whole columns.

frame    groups calls by API, and computes features and comparable properties of values
nesting  finds the calls in which each call and each change happened
ranks    chooses the ranks to compare, and joins their records
"""
