"""Says which module, reduction or step is at fault, by a second look in which errors stay put.

After a failure the ladder calls `search.localize`: candidate and reference run again, with what
flows between modules rewritten (TTrace, section 4.3; `record/inject/rewrite.py`), and what still
differs then is where the fault is.

    scales   what to rewrite each tensor with
    inputs   whether a module's inputs agree, whose layout nobody declared
    blame    from the tensors that differ to the code that made them
    stages   the two ends of what a pipeline cuts, and what stages hand on
    initial  what is wrong before anything flows
    compared what was compared, so that only that is said to agree
    places   the line to look at for a fault outside of the modules
    budget   how long it may take, and failures that begin alike
    whole_steps  what whole steps tell, where nothing flows that was recorded
    search   the runs, the axis; the way through the house
    words    how the report says it
"""
