"""The launcher that forks ranks from a process that has imported torch.

launcher, start   the launcher, and the fork server of a pytest run as its owner sees it
keeper, server    keeps a fork server alive; imports torch once and forks guards
group             the guard of a group: forks its ranks and lets nothing outlive them
forked_rank       what a fresh process has and a forked one lacks
fit, bindings     whether a forked rank would be what an exec'd one is
preload           which modules to import before forking
early             a group that is forked before there is room for it
"""
