"""The warm launcher: forks ranks from a process that has already imported torch.

launcher, start   the launcher, and starting the fork server of a pytest run
keeper, server    restarts the fork server if it dies; imports torch once and forks reapers
group             the reaper of a group: forks its ranks and ends all of their processes
forked_rank       makes a forked process equivalent to a freshly started one
fit, bindings     whether a forked rank would behave as a freshly started one
preload           which modules to import before forking
preforked         a group that is forked before there is room to run it
"""
