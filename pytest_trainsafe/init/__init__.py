"""`pytest --trainsafe-init PROGRAM`: what a training program lacks, and its first test.

hooks.py        replaces the run of tests
contact.py      the whole of it: trains, prints, writes
program.py      finds the program that the option names
trial.py        trains it on one device, and again where that is cheap
checklist.py    what the recorded training shows, and what is missing
axes.py         the axes that the program asks for, and the Points of a first sweep
points.py       tries each axis on two ranks, and writes the layouts that are missing
files.py        the text of the first test, and files that are never overwritten
"""
