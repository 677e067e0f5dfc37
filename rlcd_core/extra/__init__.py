"""What stands on the core and is not needed by it: grids of runs, files, a service.

Nothing below imports from here, and ``import rlcd_core`` never does.
"""
