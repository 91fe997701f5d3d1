"""The compare judge compares a candidate's Trace with its reference's, in one dtype.

judge         compares the reference's tensors in dataflow order
parameters    compares initial parameters and each step's updates
results       collects the findings of one comparison
comparison    the result, read by the guards and the report
rung          the traces that are judged together
tensor        compares two logical tensors, by `errors`
values        loads the logical tensors of a trace and keeps them as long as needed
decisions, buffers, model_inputs   kinds with rules of their own
tolerance/    how large an error rounding explains
sketch/       tensors recorded as random projections only
patterns/     known relations of a wrong value to its reference; `explain/` has the evidence
guards/       detect checks that could not have failed, and list what was not compared
declarations/ detect missing and wrong annotations of layouts and means
"""
