"""The semantics of torch's operators, one family a file; `table.py` imports all of them.

Each function takes `Numbers` first and then the operator's arguments.  Formulas are those of
torch's reference (native_functions.yaml, derivatives.yaml and the pages of torch.nn.functional);
`check_semantics` compares each with the operator itself.

    elementwise/  arithmetic, comparisons and clamps, activation functions
    layers/       softmax and losses, norms, convolution, pooling, attention
    products      products of matrices
    reductions    sums, variances, norms, maxima, sorting
    selections    medians, running maxima, buckets, draws by chances
    optimizers    fused optimizers, gradient scaling
    movement      views, copies, selections: operators that run as they are
    indexing      writes of constants, and sums of what falls on one place
    factories     new tensors;  casts  casts and copies;  draws  random numbers
    collectives   reductions over ranks
"""
