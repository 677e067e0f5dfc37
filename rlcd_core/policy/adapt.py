"""Training a part of a policy: its top layers, or low-rank adapters (LoRA).

The training loop optimises, checkpoints and averages the parameters that require a
gradient, so a checkpoint of an adapted policy holds these alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from rlcd_core.policy.base import PolicyError
from rlcd_core.policy.loading import body_of

P = TypeVar("P", bound=nn.Module)


def holder(policy: Any) -> Any:
    """The innermost policy, the one that holds a ``model`` of transformers.

    Raises
    ------
    PolicyError
        There is none: a table and a head on frozen spans have no layers to adapt.
    """
    inner = policy
    while not hasattr(inner, "model"):
        if not hasattr(inner, "policy"):
            raise PolicyError(
                f"{type(policy).__name__} holds no language model or encoder to adapt: "
                "all of its parameters are trained as they are."
            )
        inner = inner.policy
    return inner


def trained(policy: nn.Module) -> int:
    """Number of parameters that training would change.

    Examples
    --------
    >>> trained(nn.Linear(2, 3))
    9
    """
    return sum(p.numel() for p in policy.parameters() if p.requires_grad)


def layers_of(model: Any) -> nn.ModuleList:
    """The transformer's layers, bottom first."""
    count = model.config.num_hidden_layers
    for module in body_of(model).modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise PolicyError(f"{type(model).__name__} has no list of its {count} layers.")


def top_layers(policy: P, n: int) -> P:
    """Train the last ``n`` layers and the final norm of a policy's model, no more.

    What the policy has beside its model (the two matrices of a `SpanHead`) is left as
    it is. Embeddings and output rows are frozen, tied or not.

    Parameters
    ----------
    policy : LetterPolicy, VerbatimPolicy, MaskedPolicy, SpanHead, or one around them
        Changed in place.
    n : int
        1 to the number of layers.

    Returns
    -------
    The same policy.

    Raises
    ------
    PolicyError
        No such number of layers, or nothing to adapt.
    """
    model = holder(policy).model
    layers = layers_of(model)
    if not 1 <= n <= len(layers):
        raise PolicyError(f"n={n}: the model has {len(layers)} layers, pass 1 or more")
    model.requires_grad_(False)
    for layer in layers[-n:]:
        layer.requires_grad_(True)
    for child in body_of(model).children():
        # The final norm: a childless part whose parameters are all vectors.
        shapes = [p.ndim for p in child.parameters()]
        if shapes and max(shapes) == 1 and not list(child.children()):
            child.requires_grad_(True)
    return policy


def lora(
    policy: P,
    rank: int = 8,
    *,
    alpha: float | None = None,
    targets: Sequence[str] | str = "all-linear",
    seed: int = 0,
) -> P:
    r"""Freeze a policy's model and train a low-rank change of its matrices.

    Each target matrix W becomes :math:`W + \frac{\alpha}{r} B A` with A (r, in) and B
    (out, r); B starts at zero, so that the policy answers as before.

    Parameters
    ----------
    policy
        As for `top_layers`; changed in place: ``model`` becomes a ``PeftModel``.
    rank : int
        r, at least 1.
    alpha : float, optional
        Default ``2 * rank``.
    targets : sequence of str, or "all-linear"
        Names of linear layers, as peft takes them; "all-linear" is all but the output
        layer.
    seed : int
        Fixes A; torch's own generator is left as it was.

    Returns
    -------
    The same policy. There is no dropout: a resumed run takes the same steps.

    Raises
    ------
    PolicyError
        The rank is below 1, the model has adapters already, or nothing to adapt.
    ModuleNotFoundError
        peft is not installed (it comes with the extra ``train``).
    """
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers.pytorch_utils import Conv1D

    inner = holder(policy)
    if rank < 1:
        raise PolicyError(f"rank={rank}: pass at least 1")
    if isinstance(inner.model, PeftModel):
        raise PolicyError("The model has adapters already: merge them first.")
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        # GPT-2 keeps its matrices transposed.
        fan_in_fan_out=any(isinstance(part, Conv1D) for part in inner.model.modules()),
        lora_dropout=0.0,
        bias="none",
    )
    mode = inner.model.training
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft asks transformers by a name that is on its way out.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        torch.manual_seed(seed)
        inner.model = get_peft_model(inner.model, config).train(mode)
    return policy


def merge(policy: P) -> P:
    """Add the adapters into the matrices, for export: a plain model again.

    The answers stay the same to rounding; nothing requires a gradient any more but
    what the policy has beside its model.

    Raises
    ------
    PolicyError
        The model has no adapters.
    """
    from peft import PeftModel

    inner = holder(policy)
    if not isinstance(inner.model, PeftModel):
        raise PolicyError("The model has no adapters to merge.")
    inner.model = inner.model.merge_and_unload().requires_grad_(False)
    return policy
