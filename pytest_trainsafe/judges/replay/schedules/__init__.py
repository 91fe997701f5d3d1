"""Judges whether a Run gives the same results whenever its asynchronous collectives complete.

judge       runs the program in two schedules and compares them
events      what ranks record: how many calls were asynchronous, and which buffers were used early
instrument  records it
text        the failure message
"""
