"""Families of runs, one module a subject.

Each module has ``FAMILIES`` (name to a function that lists the jobs) and
``WITH_PREDICTIONS`` (the families whose predictions are kept row by row).
"""
