"""Makes the Runs that tests need: launched ahead, shared, cached.

session      launches Runs, and shares them between the tests of a process
specs        the RunSpecs of a test, and where their code is
traces       the Traces of one test in one role, recorded on request
asked        what a test asked for in one role
rounding     by which dtype's rounding a Run can be judged
ahead, idle  launches the next test's Runs; warns of a test that asks for none
cache        references of earlier pytest runs, by the keys of `fingerprint` and `sources`
group        the fixture `torchrun_group`
"""
