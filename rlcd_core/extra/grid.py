"""Many runs: families of jobs, finished one by one, kept as they finish.

A family is a list of jobs; its records are committed under ``results/``. Running a
family again trains only what has no record yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from tqdm import tqdm

from rlcd_core.extra.families import (
    efficiency,
    elsewhere,
    joint,
    preferences,
    rater,
    reference,
    smol,
    triage,
)
from rlcd_core.extra.jobs import AnyJob
from rlcd_core.records import RunRecord, Store, config_hash

_MODULES = (rater, efficiency, elsewhere, smol, joint, preferences, triage, reference)

FAMILIES: dict[str, Callable[[], list[Any]]] = {
    name: jobs for module in _MODULES for name, jobs in module.FAMILIES.items()
}
"""Families by name. Their records are ``results/<name>.jsonl``."""

WITH_PREDICTIONS: frozenset[str] = frozenset().union(
    *(module.WITH_PREDICTIONS for module in _MODULES)
)

ON_GPU: frozenset[str] = frozenset().union(
    *(getattr(module, "ON_GPU", ()) for module in _MODULES)
)
"""Families whose runs want all of a GPU: one at a time, in this process."""

UNFINISHED: frozenset[str] = frozenset().union(
    *(getattr(module, "UNFINISHED", ()) for module in _MODULES)
)
"""Families whose runs are not all recorded: no result of theirs may be shown."""


def first_line(make: Callable[[], list[Any]]) -> str:
    """What a family is, in one line."""
    return (make.__doc__ or "").splitlines()[0]


def family_records(name: str) -> list[RunRecord]:
    """The records of exactly the jobs of a family, in the order of its jobs.

    Raises
    ------
    LookupError
        If a job has no record: it never ran, or data, arm or sizes changed since.
    """
    if name in UNFINISHED:
        raise LookupError(
            f"the runs of {name!r} are not all recorded, so it has no result; it waits "
            f"for somebody{' with a GPU' * (name in ON_GPU)} to run: rlcd runs {name}"
        )
    known = {record.key: record for record in Store(name).records()}
    keys = [config_hash(job.full_config()) for job in FAMILIES[name]()]
    missing = sum(key not in known for key in keys)
    if missing:
        raise LookupError(
            f"{missing} of {len(keys)} runs of {name!r} have no record for the data, "
            f"arms and sizes of this version; run: rlcd runs {name}"
        )
    return [known[key] for key in keys]


def run_family(
    name: str, n_jobs: int = 2, limit: int | None = None, arm: str | None = None
) -> int:
    """Train every job of a family that has no record, then merge the records.

    Parameters
    ----------
    name : str
        Key of ``FAMILIES``.
    n_jobs : int
        Worker processes, one thread each; a family of ``ON_GPU`` has none.
    limit : int, optional
        Train at most this many missing jobs.
    arm : str, optional
        Train the jobs of this arm alone.

    Returns
    -------
    int
        Records of the family after the merge.
    """
    if name not in FAMILIES:
        raise KeyError(f"no family {name!r}; there are {', '.join(sorted(FAMILIES))}")
    store = Store(name)
    jobs = FAMILIES[name]()
    known = {record.key for record in store.records()}
    arms = sorted({job.arm.name for job in jobs})
    if arm is not None and arm not in arms:
        raise KeyError(f"no arm {arm!r} in {name!r}; there are {', '.join(arms)}")
    asked = [job for job in jobs if arm in (None, job.arm.name)]
    missing = [j for j in asked if config_hash(j.full_config()) not in known][:limit]
    work = (delayed(_train)(job, name) for job in missing)
    done: Iterable[tuple[RunRecord, np.ndarray]] = Parallel(
        n_jobs=1 if name in ON_GPU else n_jobs, return_as="generator_unordered"
    )(work)
    for record, predictions in tqdm(done, total=len(missing), desc=name):
        store.add(record, predictions if name in WITH_PREDICTIONS else None)
    return store.gather(keep=(config_hash(job.full_config()) for job in jobs))


def _train(job: AnyJob, family: str) -> tuple[RunRecord, np.ndarray]:
    return job.train(family)
