"""The semantics of torch's operators, one family a file; `table.py` imports all of them.

Each function takes `Numbers` first and then the operator's arguments.  Formulas are those of
torch's reference (native_functions.yaml, derivatives.yaml and the pages of torch.nn.functional);
`check_semantics` compares each with the operator itself.
"""
