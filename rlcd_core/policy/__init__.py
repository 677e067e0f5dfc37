"""Policies: ways to read a decision from a table, a head or a language model."""

from rlcd_core.policy.base import (
    Batch,
    Item,
    Policy,
    PolicyError,
    Prepared,
    TabularPolicy,
    masked_log_softmax,
    predict,
)
from rlcd_core.policy.encoder import Encoder
from rlcd_core.policy.finalists import Finalists
from rlcd_core.policy.head import DecisionHead
from rlcd_core.policy.letter import LetterPolicy
from rlcd_core.policy.masked import MaskedPolicy
from rlcd_core.policy.order import PermutationAverage
from rlcd_core.policy.spans import SpanHead
from rlcd_core.policy.stated import StatedChoice, StatedPolicy
from rlcd_core.policy.verbatim import VerbatimPolicy

__all__ = [
    "Batch",
    "DecisionHead",
    "Encoder",
    "Finalists",
    "Item",
    "LetterPolicy",
    "MaskedPolicy",
    "PermutationAverage",
    "Policy",
    "PolicyError",
    "Prepared",
    "SpanHead",
    "StatedChoice",
    "StatedPolicy",
    "TabularPolicy",
    "VerbatimPolicy",
    "masked_log_softmax",
    "predict",
]
