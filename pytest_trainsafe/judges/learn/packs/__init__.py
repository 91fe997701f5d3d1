"""Packs: text files of reviewed invariants.

pack        defines packs and writes their text
read        reads packs that anybody may have edited
update      updates an old pack with newly learned invariants, and finds contradictions
traincheck  reads invariants from TrainCheck's files
"""
