"""The comparison's sentences: the failure message, and its parts.

message   the whole message of a comparison that is not a pass
doubts    the rows of an inconclusive verdict
proposal  the rows of layouts and declarations that are missing or wrong
mismatch  the numbers of the element that differs most
"""
