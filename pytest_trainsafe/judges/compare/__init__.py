"""The compare judge compares a candidate's Trace with its reference's, in one dtype.

checks        the names of its checks that can be inconclusive
judge         the registered judge, which runs the ladder
ladder/       judges one dtype after another
localize/     finds the faulty code, with values rewritten between modules
judgement     the results of the rungs, which reports read
declarations/ detect missing and wrong annotations of layouts and of averages
guards/       detect checks that could not have failed, and list what was not compared
compare       compares the reference's tensors in dataflow order
parameters    compares initial parameters and each step's updates
screening     screens tensors by their sketches; `rerecord` selects those to record again
results       collects the findings of one comparison
explain/      collects the evidence on a wrong tensor, and describes it
comparison    the result, read by the guards and the report
factor        a factor that all gradients of a step share
fault/        where the code at fault is, and clauses that describe it
kinds/        judge kinds of tensors that have rules of their own
patterns/     recognise known relations of a wrong value to its reference
tolerance/    determines how large an error rounding explains
narrowed      finds values that were rounded to a narrower dtype
rung          the traces that are judged together, and whether they did the `same_computation`
tensors/      compares one logical tensor with its reference
events/       the keys, values and notes of rewritten tensors, on both sides
instrument/   what this changes in the ranks: noise, and rewritten values
text/         the sentences of reports
"""
