"""Runs: the round loop, run folders, checkpoints, comparisons of many runs, and pilots.

The modules are imported one by one, because reading the record of a run does not need PyTorch and training does.
"""
