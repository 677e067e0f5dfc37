"""Attention of many suffixes to one prefix whose keys and values exist once.

transformers lets a model call an attention function by name and hands unknown keyword
arguments of the forward call through to it. The function registered here is its own
`sdpa` until it is handed a `PrefixAttention`.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from rlcd_core.policy.loading import body_of

NAME = "rlcd_prefix"


class PrefixAttention:
    r"""Records the keys and values of one prefix, then lets suffixes attend to them.

    A suffix token with query q attends to the prefix P and, causally, to its own row:

    .. math:: \mathrm{softmax}([q K_P^\top,\; q K_{own}^\top]) \, [V_P; V_{own}]

    which is what it does in the full prompt. The prefix is neither copied for each
    row nor ever written to: nothing a call does can be seen by the next one.

    Attributes
    ----------
    layers : dict of int to (keys, values)
        Each (H_kv, S, d), by layer; filled by the forward pass over the prefix.
    frozen : bool
        Set it to True once the prefix has been read.
    """

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.frozen = False

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        """Attention output (B, q, H, d) of right-padded rows against the prefix.

        Attention over two sets of keys is the mean of the attention over each, weighted
        by the sums of their exponentials. All is float32 or wider, as it is inside the
        fused kernels of the plain path.
        """
        wide = torch.promote_types(query.dtype, torch.float32)
        past = [part[None].to(wide) for part in self.layers[layer]]
        own = [part.to(wide) for part in (key, value)]
        query = query.to(wide)
        rows, heads, length, size = query.shape
        groups = past[0].shape[1]
        # One product for all rows and heads of a group: the prefix is the same for all.
        flat = query.reshape(rows, groups, -1, size).transpose(0, 1)
        seen, seen_sum = _attend(flat.reshape(1, groups, -1, size), *past, False, scale)
        seen = seen.reshape(groups, rows, -1, size).transpose(0, 1).reshape(query.shape)
        seen_sum = seen_sum.reshape(groups, rows, -1).transpose(0, 1)
        own = [part.repeat_interleave(heads // groups, 1) for part in own]
        near, near_sum = _attend(query, *own, True, scale)
        share = torch.sigmoid(seen_sum.reshape(rows, heads, length) - near_sum)
        return near.lerp(seen, share[..., None]).transpose(1, 2).to(value.dtype)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention output (B, H, q, d) and log-sum-exp of the scores (B, H, q)."""
    if query.device.type == "cpu" and not torch.is_grad_enabled():
        # The kernel under scaled_dot_product_attention: half the time, no score matrix.
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return fused(query, key, value, 0.0, causal, scale=scale)
    scores = query @ key.mT * scale
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device)
        scores = scores.masked_fill(future.triu(1), -torch.inf)
    total = scores.logsumexp(-1)
    return (scores - total[..., None]).exp() @ value, total


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    prefix_attention: PrefixAttention | None = None,
    scaling: float | None = None,
    wide_attention: bool = False,
    **options: Any,
) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if wide_attention:
        # As in `PrefixAttention`: half precision rounds between the kernel's blocks.
        wide = torch.promote_types(query.dtype, torch.float32)
        query, key, narrow = query.to(wide), key.to(wide), value.dtype
        out, _ = sdpa_attention_forward(
            module, query, key, value.to(wide), attention_mask, scaling=scaling
        )
        return out.to(narrow), None
    if prefix_attention is not None and prefix_attention.frozen:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        out = prefix_attention.attend(module.layer_idx, query, key, value, scale)
        return out.contiguous(), None
    if prefix_attention is not None:
        prefix_attention.layers[module.layer_idx] = (key[0], value[0])
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, **options
    )


def attends_to_all(model: Any) -> bool:
    """Whether a model attends by `sdpa` to all positions, and takes their numbers.

    Only then does a block mask, or a prefix that is read apart, say what it sees: a
    sliding window would add a mask of its own, and a model that counts positions by
    itself would number a branch wrongly.
    """
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return (
        config._attn_implementation in ("sdpa", NAME)
        and kinds == {"full_attention"}
        and getattr(config, "sliding_window", None) is None
        and "position_ids" in inspect.signature(body_of(model).forward).parameters
    )


def use_prefix_attention(model: Any) -> bool:
    """Let a model use `PrefixAttention`; without one it attends as before.

    Returns
    -------
    bool
        False, and nothing changed, if the model is not one that `attends_to_all`.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if not attends_to_all(model):
        return False
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    getattr(model, "get_base_model", lambda: model)().set_attn_implementation(NAME)
    return True
