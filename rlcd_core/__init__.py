"""Calibrated decisions from bandit feedback: the thin core of the book.

The modules stand on floors and import only from floors below their own:

1. `schema`, `scoring`, `metrics` (NumPy at most, never torch)
2. `rewards`, `exact`, `env`, `data`
3. `policy`
4. `train`, `calibrate`, `gates`
5. `evaluate`, `records`, `export`, `decider`, `plots`
6. the command line, `python -m rlcd_core`

``import rlcd_core`` loads the question types alone; every other module is imported
by name (``from rlcd_core import scoring``) when it is needed.

Examples
--------
>>> import rlcd_core
>>> rlcd_core.Noul("Is the ticket urgent?").options
('true', 'false')
"""

from rlcd_core.schema import Choice, Noul, SchemaError, Score

__all__ = ["Choice", "Noul", "SchemaError", "Score", "__version__"]
__version__ = "0.1.0"
