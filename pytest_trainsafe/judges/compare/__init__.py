"""The compare judge compares a candidate's Trace with its reference's, in one dtype.

checks        the names of its checks that can be inconclusive
judge         the registered judge, which runs the ladder
ladder/       judges one dtype after another
compare       compares the reference's tensors in dataflow order
parameters    compares initial parameters and each step's updates
results       collects the findings of one comparison
comparison    the result, read by the guards and the report
rung          the traces that are judged together
tensor        compares two logical tensors; `errors` measures their difference
values        loads the logical tensors of a trace and caches them
decisions, buffers, model_inputs   judge kinds of tensors that have rules of their own
tolerance/    determines how large an error rounding explains
sketch/       judges tensors of which only random projections were recorded
explain/      collects the evidence on a wrong tensor, and describes it
patterns/     recognise, by this evidence, known relations of a wrong value to its reference
guards/       detect checks that could not have failed, and list what was not compared
declarations/ detect missing and wrong annotations of layouts and of averages
localize/     finds the faulty code, with values rewritten between modules
instrument/   what this changes in the ranks: noise, and rewritten values
text/         the sentences of reports
"""
