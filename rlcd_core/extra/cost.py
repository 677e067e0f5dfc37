"""What training a causal language model costs: memory and time from a formula.

Counts are exact (parameters, multiplications, saved bytes); times rest on a peak and on
the share of it that is reached, and are estimates wherever nobody has measured that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GIB = 2**30


@dataclass(frozen=True)
class Shape:
    """The sizes of a model of decoder layers with a gated MLP (Llama, Qwen).

    Parameters
    ----------
    head_norm : bool
        Whether queries and keys pass a norm of their own (Qwen3).
    tied : bool
        Whether the output matrix is the embedding.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool = True
    head_norm: bool = False

    @classmethod
    def of(cls, config: Any) -> Shape:
        """The sizes that a configuration of transformers states."""
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=heads,
            kv_heads=config.num_key_value_heads,
            head_size=size,
            vocabulary=config.vocab_size,
            tied=config.tie_word_embeddings,
            head_norm=config.model_type == "qwen3",
        )

    @property
    def layer_products(self) -> int:
        """Weights of the matrices of one layer."""
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        attention = self.hidden * (2 * q + 2 * kv)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """All weights, biases being absent in these models."""
        norms = 2 * self.hidden + (2 * self.head_size if self.head_norm else 0)
        tables = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * (self.layer_products + norms) + self.hidden + tables

    def forward_flops(
        self, prompts: int, tokens: int, layers: int | None = None
    ) -> int:
        """Operations of one forward pass over prompts of `tokens` tokens each.

        Two for each weight and token, and four for each query channel and earlier
        token. The output rows of a few labels are too few to count.
        """
        seen = tokens * (tokens + 1) // 2
        per_layer = 2 * self.layer_products * tokens
        per_layer += 4 * self.heads * self.head_size * seen
        return prompts * per_layer * (self.layers if layers is None else layers)

    def step_flops(self, prompts: int, tokens: int, layers: int | None = None) -> int:
        """Operations of one training step: the backward pass costs two forward ones.

        `layers`: how many, from the top, are run and trained (default all).
        """
        return 3 * self.forward_flops(prompts, tokens, layers)

    def saved_bytes(self, tokens: int, half: bool) -> int:
        """Bytes that the forward pass keeps for the backward pass.

        Parameters
        ----------
        tokens : int
            Of all prompts of the micro-batch, filler included.
        half : bool
            16-bit autocast: products are kept in 2 bytes and their matrices are copied;
            norms stay in 4.
        """
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        size = 2 if half else 4
        # Each norm keeps its input, the root and the quotient; each matrix product its
        # input, which autocast copies once a product and float32 shares.
        norms = 2 * (8 * self.hidden + 4)
        norms += (5 * 2 if half else 2 * 4) * self.hidden
        attention = size * (2 * q + 2 * kv) + 4 * self.heads
        if self.head_norm:
            attention += (4 + size) * (q + kv) + 4 * (self.heads + self.kv_heads)
        layer = norms + attention + 4 * size * self.intermediate
        copies = 2 * self.layer_products if half else 0
        # The last norm, and the tokens themselves.
        last = 8 * self.hidden + 12
        return self.layers * (layer * tokens + copies) + last * tokens

    def training_bytes(self, tokens: int, half: bool) -> dict[str, int]:
        """Peak memory of a full fine-tune with AdamW and float32 master weights.

        Parameters
        ----------
        tokens : int
            Of one micro-batch, filler included.

        Returns
        -------
        dict
            ``weights``, ``gradients``, ``optimiser`` (two moments) and ``transient``:
            the larger of what a backward pass holds (saved values and one dense
            gradient of the embedding) and of the optimiser's work space. ``total``.
        """
        own = 4 * self.parameters
        table = 4 * self.vocabulary * self.hidden
        transient = max(self.saved_bytes(tokens, half) + table, own)
        parts = {
            "weights": own,
            "gradients": own,
            "optimiser": 2 * own,
            "transient": transient,
        }
        return parts | {"total": sum(parts.values())}

    def optimiser_traffic(self) -> int:
        """Bytes that one AdamW step reads and writes, clipping included.

        Of each weight 4 bytes: gradient norm and scaling (3), decay (2), first moment
        (3), second moment (3), root and its division and sum (6), update (4).
        """
        return 4 * 21 * self.parameters


QWEN3_06B = Shape(28, 1024, 3072, 16, 8, 128, 151_936, head_norm=True)
SMOLLM2_135M = Shape(30, 576, 1536, 9, 3, 64, 49_152)


@dataclass(frozen=True)
class Machine:
    """One accelerator as its maker describes it.

    Parameters
    ----------
    peak : float
        Dense 16-bit matrix products, operations a second.
    bandwidth : float
        Bytes a second to and from its memory.
    memory : float
        Bytes, as sold.
    launch : float
        Seconds that one small operation takes from Python, whatever its size.
    """

    name: str
    peak: float
    bandwidth: float
    memory: float
    launch: float = 8e-6


# Published peaks: NVIDIA's data sheets of the T4, the A100 (40 GB) and the H200.
MACHINES = (
    Machine("T4", 65e12, 320e9, 16e9),
    Machine("A100", 312e12, 1555e9, 40e9),
    Machine("H200", 989e12, 4800e9, 141e9),
)

# Operations on data (views left out) that one layer of Qwen3 asks for in a forward and
# a backward pass under autocast, as torch dispatches them.
OPERATIONS_PER_LAYER = 181


def step_seconds(
    shape: Shape,
    machine: Machine,
    prompts: int,
    tokens: int,
    micro_batch: int,
    utilisation: float,
) -> float:
    """Seconds of one optimiser step over `prompts` prompts of `tokens` tokens.

    Each micro-batch takes as long as its products at ``utilisation`` times the peak, or
    as its operations take to be launched, whichever is longer; then AdamW moves its
    bytes once.
    """
    passes = -(-prompts // micro_batch)
    work = shape.step_flops(micro_batch, tokens) / (machine.peak * utilisation)
    launched = shape.layers * OPERATIONS_PER_LAYER * machine.launch
    return passes * max(work, launched) + shape.optimiser_traffic() / machine.bandwidth


def run_seconds(
    shape: Shape,
    machine: Machine,
    *,
    steps: int,
    prompts: int,
    tokens: int,
    micro_batch: int,
    read: int,
    utilisation: float,
) -> float:
    """Seconds of one run: its steps, and `read` prompts that are only evaluated."""
    per_step = step_seconds(shape, machine, prompts, tokens, micro_batch, utilisation)
    reading = shape.forward_flops(read, tokens) / (machine.peak * utilisation)
    return steps * per_step + reading


def predicted(
    measured: Mapping[str, Any], base: str = "base"
) -> dict[str, dict[str, float]]:
    """How far the formula is off what ``tests/bench/cost.py`` measured on a processor.

    The size ``base`` sets the share of the peak that training reaches; the times of the
    others follow from it. Memory follows from the counts alone.

    Parameters
    ----------
    measured : mapping
        ``peak`` in operations and ``copy`` in bytes a second; ``shape``; ``measured``,
        which maps a size to its ``prompts``, padded ``tokens``, ``seconds`` a step and
        ``bytes``, all in float32.

    Returns
    -------
    dict
        For each size ``time`` and ``memory``, predicted / measured - 1, and the
        ``utilisation`` behind it.
    """
    shape = Shape(**measured["shape"])
    update = shape.optimiser_traffic() / measured["copy"]

    def flops(row: Mapping[str, float]) -> int:
        return shape.step_flops(int(row["prompts"]), int(row["tokens"]))

    first = measured["measured"][base]
    reached = flops(first) / (first["seconds"] - update)
    found = {}
    for name, row in measured["measured"].items():
        tokens = int(row["prompts"] * row["tokens"])
        memory = shape.training_bytes(tokens, half=False)["total"]
        found[name] = {
            "time": (flops(row) / reached + update) / row["seconds"] - 1.0,
            "memory": memory / row["bytes"] - 1.0,
            "utilisation": reached / measured["peak"],
        }
    return found
