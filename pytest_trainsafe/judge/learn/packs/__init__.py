"""Packs: text files of reviewed invariants.

fields      an invariant as plain, checked data
pack        a pack, and the text of one
read        packs from text that anybody may have edited
update      an old pack with what was learned since; contradictions between packs
traincheck  invariants from TrainCheck's files
"""
