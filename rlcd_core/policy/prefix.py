"""Attention of many suffixes to one prefix whose keys and values exist once.

transformers lets a model call an attention function by name and hands unknown keyword
arguments of the forward call through to it. The function registered here is its own
`sdpa` until it is handed a `PrefixAttention`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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

        The scores and the softmax are float32 or wider, like those inside the fused
        kernels of the plain path.
        """
        past_key, past_value = self.layers[layer]
        rows, heads, length, size = query.shape
        groups = len(past_key)
        wide = torch.promote_types(query.dtype, torch.float32)
        query = query.to(wide).reshape(rows, groups, -1, size)
        # One large product for all rows, since the prefix is the same for all.
        flat = query.transpose(0, 1).reshape(groups, -1, size)
        seen = (flat @ past_key.to(wide).mT).reshape(
            groups, rows, -1, past_key.shape[1]
        )
        own = query @ key.to(wide).mT
        future = torch.ones(length, length, dtype=torch.bool, device=query.device)
        future = future.triu(1).repeat(heads // groups, 1)
        own = own.masked_fill(future, -torch.inf)
        scores = torch.cat([seen.transpose(0, 1), own], -1)
        weights = scores.mul_(scale).softmax(-1)
        to_past, to_own = weights.split([past_key.shape[1], length], -1)
        flat = to_past.transpose(0, 1).reshape(groups, -1, past_key.shape[1])
        out = (flat @ past_value.to(wide)).reshape(groups, rows, -1, size)
        out = out.transpose(0, 1) + to_own @ value.to(wide)
        return out.reshape(rows, heads, length, size).transpose(1, 2).to(value.dtype)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    prefix_attention: PrefixAttention | None = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if prefix_attention is not None and prefix_attention.frozen:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        out = prefix_attention.attend(module.layer_idx, query, key, value, scale)
        return out.contiguous(), None
    if prefix_attention is not None:
        prefix_attention.layers[module.layer_idx] = (key[0], value[0])
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, **options
    )


def use_prefix_attention(model: Any) -> bool:
    """Let a model use `PrefixAttention`; without one it attends as before.

    Returns
    -------
    bool
        False, and nothing changed, if the model attends in windows or not by `sdpa`.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) is not None
    if config._attn_implementation not in ("sdpa", NAME):
        return False
    if kinds != {"full_attention"} or windowed:
        return False
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    getattr(model, "get_base_model", lambda: model)().set_attn_implementation(NAME)
    return True
