"""The warm launcher: forks ranks from a process that has already imported torch.

launcher          the launcher itself
start             starts the fork server of a pytest run
early             starts it while pytest collects tests
keeper            the process that restarts the fork server if it dies
server            the fork server: imports torch once and forks a reaper for each group
group             the reaper of a group: forks its ranks and ends all of their processes
forked_rank       makes a forked process equivalent to a freshly started one
fit               checks whether a forked rank would behave as a freshly started one
preload           learns which modules to import before forking
preforked         a group that is forked before there is room to run it
"""
