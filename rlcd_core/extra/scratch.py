"""A letter reader from nothing: a small causal transformer and its own tokenizer.

Nothing here reads a distribution: that is left to
:class:`rlcd_core.policy.LetterPolicy`, which reads these models as it reads every other
causal language model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from rlcd_core.data.triage import DEPARTMENT, ESCALATE, tickets
from rlcd_core.policy import LetterPolicy
from rlcd_core.schema import LETTERS, Question, render_prefix, render_suffix

# The fixed lines of a prompt, byte for byte as the schema writes them.
_FRAME = (
    "User: Context:\n",
    "\n\nQuestion:",
    "\nOptions:",
    "\nAnswer with the letter only.\nAssistant: The answer is",
)


@dataclass(frozen=True)
class Reader:
    """Sizes of a letter reader.

    Parameters
    ----------
    width, layers, heads, inner : int
        Hidden size, transformer blocks, attention heads, width inside a block.
    vocabulary : int
        Most tokens; the text may need fewer.
    window : int
        Longest prompt in tokens.
    spread : float
        Standard deviation of the random weights at the start.
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    inner: int = 128
    vocabulary: int = 2200
    window: int = 128
    spread: float = 0.1

    def build(self, generator: torch.Generator) -> LetterPolicy:
        """A reader with random weights that `generator` fixes; global draws go on."""
        from transformers import LlamaConfig, LlamaForCausalLM

        words = tokenizer(self.vocabulary)
        seed = int(torch.randint(2**62, (1,), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=len(words),
                    hidden_size=self.width,
                    intermediate_size=self.inner,
                    num_hidden_layers=self.layers,
                    num_attention_heads=self.heads,
                    num_key_value_heads=self.heads,
                    max_position_embeddings=self.window,
                    initializer_range=self.spread,
                    tie_word_embeddings=True,
                    bos_token_id=0,
                    eos_token_id=0,
                )
            )
        return LetterPolicy(model.eval(), words)


@cache
def tokenizer(vocabulary: int = 2200) -> Any:
    """The tokenizer of the bare tickets: trained on 4,000 of them, in a second."""
    items = tickets(4000, np.random.default_rng(2718), bare=True)
    texts = [render_prefix(i.state) + render_suffix(i.question) for i in items]
    return train_tokenizer(texts, (DEPARTMENT, ESCALATE), vocabulary)


def train_tokenizer(
    texts: Sequence[str], questions: Sequence[Question], vocabulary: int
) -> Any:
    """Byte-level pairs in which frame, known questions and labels are single tokens.

    The prompt stays byte for byte what the schema writes; lines that are the same in
    every prompt are kept whole before pairs are counted, so that a prompt takes about
    half the tokens and a small model half the time. Any other text is still encoded,
    word by word and at worst byte by byte.

    Parameters
    ----------
    texts : sequence of str
        Prompts to count pairs in.
    questions : sequence of Question
        Questions that become one token each.
    vocabulary : int
        Most tokens.

    Returns
    -------
    PreTrainedTokenizerFast
    """
    from tokenizers import (
        Regex,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    whole = [*_FRAME, *(f" {question.text.strip()}" for question in questions)]
    pieces = [re.escape(line).replace("\\\n", r"\n") for line in whole]
    pieces += [r"\n[A-Z]{1,2}\)", r" ?\w+", r" ?[^\s\w]+", r"\s+"]
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join(pieces)), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|endoftext|>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Often enough that no pair of a label or of its line loses to a rare word.
    labels = [f"{_FRAME[-1]} {x}\n{x})" for x in LETTERS] * 200
    words.train_from_iterator([*texts, *labels], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|endoftext|>", pad_token="<pad>"
    )
