"""Time 10,000 paired, clustered bootstraps on 8,000 rows: means and ECE.

``python tests/bench/bootstrap.py`` prints processor seconds; nothing is asserted, since
a machine's load is not the code's fault.
"""

from __future__ import annotations

import time

import numpy as np

from rlcd_core import metrics

N_ROWS, N_GROUPS = 8_000, 2_000


def main() -> None:
    """Print one line a case."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.3, 1, (2, N_ROWS))
    correct = (rng.random((2, N_ROWS)) < confidence).astype(float)
    eces = [
        metrics.ece_statistic(c, y) for c, y in zip(confidence, correct, strict=True)
    ]
    groups = rng.integers(0, N_GROUPS, N_ROWS)
    for name, pair in (("mean", correct), ("ECE", eces)):
        for label, of in (("rows", None), (f"{N_GROUPS} groups", groups)):
            start = time.process_time()
            metrics.paired_bootstrap(pair[0], pair[1], groups=of, rng=rng)
            print(f"{name:5} by {label:12} {time.process_time() - start:.2f} s")


if __name__ == "__main__":
    main()
