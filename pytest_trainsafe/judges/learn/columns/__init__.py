"""Prepares tables of calls and changes for relations, with operations on whole columns.

frame    groups calls by API, and computes what preconditions read (features) and rules compare
nesting  finds the calls in which each call and each change happened
ranks    chooses the ranks to compare, and joins their records
"""
