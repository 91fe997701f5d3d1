"""The launcher `threads`: the ranks of a group are threads of one process, and run in turn.

launcher          the launcher itself, which has the fork server fork one process for a group
process           the process: runs the ranks and writes their results as processes do
turns             lets one rank run at a time, and notices when none can
schedule          when asynchronous collectives happen, and which rank runs next
exchange          exchanges what ranks share because they share a process
modules           the modules of the program, of which each rank has its own
imports           notes what modules contain when they have been imported
install           puts the backend into torch, and refuses others
group             torch's process group and Work on top of the next two
meeting           collectives: calls of ranks that meet
mail              sends and receives
collectives       the definition of each collective
refusals          what the program needs but the launcher does not have
store             the store through which ranks exchange keys
"""
