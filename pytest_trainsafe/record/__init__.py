"""Records a training program inside the ranks.

program       runs the program of a Run, which an assignment describes
context       what a program sees; current: the context of a script
unrecorded    takes the recorder's place in a script that runs by itself
recorder      turns the actions of a program into the events of a Trace
instruments   makes what a Run records or changes beside the tensors; instrument: one of these
training      gradients, clipping, the optimizer and its state
model         the watched model: its parts, names, layouts and initial parameters
adapter       the interface to training frameworks
hooks         the values that modules compute
steps         how a program marks its steps and micro-batches; clock: the position that follows
tensors       functions on one tensor; layouts: the Layouts of the tensors that a rank holds
lines         the lines of a program that reports name
program_dtype what a program draws and stores, the same at every rung
reads         the files and variables that a program reads
tracked_point the Point as a program sees it, with the axes that it reads
"""
