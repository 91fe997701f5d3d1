"""Executes the Runs that tests need: launches them ahead, shares them and caches references.

session        what the tests of a process share: it joins the following
traces         the Traces of a test's reference or candidate, recorded on request
requested      the Runs that a test requested for its reference or candidate
execution      launches each Run once, caches references, discards what no test needs
specs          the RunSpecs of a test, and where their code is
rounding       the dtype whose rounding error limits the comparison of a Run
ahead          launches the next test's Runs
unused_traces  warns of a test that requests no Run
cached         references that later runs of pytest reuse
progress       what Runs do now, for the terminal
substitute     Runs that are made in another way than from the start
interrupt      stops Runs at Ctrl-C
group          the fixture `torchrun_group`
"""
