"""What the package needs of torch's private parts, a capability a file; no other file names them.

    autograd        whether a backward or a transform of torch.func surrounds the running code
    compiler        marks functions for torch's compiler without importing it; what it has compiled
    dispatch_keys   the keys by which torch's dispatcher chooses a kernel
    dispatch_modes  modes of the dispatcher, which see each operator; hiding and ordering them
    distributed/    process groups, several ranks of one process, data parallel wrappers
    files           the files that `torch.save` opens
    forking         what torch must read again in a forked process
    loaders         the iterators and the worker processes of data loaders
    modules         what a module holds itself; base classes of modules
    operators       operators, their schemas, the leaves of their arguments, functions in C
    private         whether this release has the names that a capability needs, and what is off
    tensors         versions, views, local parts and addresses of tensors
    training        what optimizers, schedulers and gradient scalers keep in private

Each file has a test that checks the capability itself against the installed torch.  Where a release
lacks a name, what needs it is off, and the trace has the sentence of `private` that says so.  The
releases that a docstring names are those whose sources were read.
"""
