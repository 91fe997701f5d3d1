"""Executes RunSpecs: launches each Run once, caches references, and discards what no test needs.

run         a finished Run
scheduled   a requested Run, which may not have finished
folders     the folders of Runs
groups      runs tasks in groups of ranks once slots are free
executor    makes one Run: from the cache of references, or by ranks that record it
scheduler   launches requested Runs in threads, in the order in which they are needed
retirement  discards the Runs that tests have released
"""
