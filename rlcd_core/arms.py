"""The arms that the book compares, each one record.

Names follow the objective; ``_g4`` marks four actions per question. The seed recipe is
the published one: four actions, a leave-one-out baseline, one label for the group.
"""

from __future__ import annotations

from rlcd_core.train import Arm

RESCUE_WEIGHTS = (0.1, 0.2, 0.3, 0.5)
"""Weights of the entropy bonus and of the KL penalty that are said to rescue RLVR."""

_GROUP = {"group_size": 4, "shared_outcome": True}

_ALL = [
    # Full information: what one bit is compared with.
    Arm("nll", "Full label, NLL", "nll"),
    Arm("brier", "Full label, Brier", "brier"),
    # The published recipes.
    Arm("rlcd_loo", "RLCD, seed recipe", "rlcd_loo", **_GROUP),
    Arm("rlvr_loo", "RLVR, seed recipe", "rlvr_loo", **_GROUP),
    Arm("rlvr_low", "RLVR, a fifth of the rate", "rlvr_loo", rate_scale=0.2, **_GROUP),
    Arm("rlcd_low", "RLCD, a fifth of the rate", "rlcd_loo", rate_scale=0.2, **_GROUP),
    # One outcome per question, or a cheaper group.
    Arm("rlcd", "RLCD, one outcome", "rlcd"),
    Arm("rlcd_g4", "RLCD, no baseline, G = 4", "rlcd", **_GROUP),
    Arm(
        "residual_ht",
        "Residual HT, G = 2",
        "residual_ht",
        group_size=2,
        replacement=False,
    ),
    Arm("rlcd_half", "RLCD, half sampled penalty", "rlcd_half"),
    Arm("rlvr_gini", "RLVR + exact Gini", "rlvr_gini"),
    Arm("verdict_nll", "Verdict NLL", "verdict_nll"),
    Arm("verdict_brier", "Verdict Brier", "verdict_brier"),
    Arm("one_bit_log", "Log score from one bit", "one_bit_log"),
    Arm("one_bit_spherical", "Spherical from one bit", "one_bit_spherical"),
    Arm("one_bit_log_spherical", "Composite from one bit", "one_bit_log_spherical"),
    # What breaks, and what is said to rescue.
    Arm("rlvr", "RLVR, one outcome", "rlvr"),
    Arm("rlcd_std", "RLCD, std-normalised", "rlcd_std", **_GROUP),
    Arm("rlvr_std", "RLVR, std-normalised", "rlvr_std", **_GROUP),
    *[
        Arm(f"rlvr_shannon_{b:g}", f"RLVR + {b:g} entropy", f"rlvr_shannon_{b:g}")
        for b in RESCUE_WEIGHTS
    ],
    *[
        Arm(f"rlvr_kl_{b:g}", f"RLVR + {b:g} KL", f"rlvr_kl_{b:g}", reference=True)
        for b in RESCUE_WEIGHTS
    ],
]

ARMS: dict[str, Arm] = {arm.name: arm for arm in _ALL}
"""Every arm by name."""
