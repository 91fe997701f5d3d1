"""The compare judge: a candidate's Trace against its reference's, in one dtype.

judge         goes through the reference's tensors in the order of dataflow
parameters    how parameters start, and what each step adds to them
results       the findings of one comparison so far
comparison    what it found; read by the guards and the report
rung          the traces that are judged together
tensor        one logical tensor against another, by `errors`
values        the logical tensors of a trace, and how long they are kept
decisions, buffers, model_inputs   kinds with rules of their own
tolerance/    how far rounding may take a tensor
sketch/       tensors of which only random projections were kept
patterns/     what a wrong value is; `explain/` has the evidence
guards/       checks that could not have failed, and what was not compared
declarations/ layouts and means that are missing or wrong
"""
