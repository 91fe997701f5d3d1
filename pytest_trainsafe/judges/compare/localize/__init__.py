"""Finds the module, reduction or step at fault with a second Run in which errors do not propagate.

After a failure `judges.compare.ladder.ladder` calls `search.localize_rung`.  Candidate and
reference run again, with the tensors that pass between modules rewritten (TTrace, section 4.3;
`judges/compare/instrument/rewrite.py`).  The tensors that still differ show the fault.

    scales      the values with which each tensor is rewritten
    inputs      compares a module's inputs, whose layout is not declared
    blame       finds the code that produced the tensors that differ
    stages      the first inputs and last outputs of modules cut into pipeline stages
    gradients   whether the gradients of parameters are at fault
    initial     faults that need no second Run
    code        the source lines of a fault
    conditions  the mode of a module, and changes of its parameters within a step
    budget      limits the time, and reuses the result of an earlier failure with the same cause
    axes        finds the axis (such as tp) without which a fault does not occur
    search      runs the above
    description  the text of the report
"""
