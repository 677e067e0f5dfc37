"""Tokenizers trained here, random models of several kinds, and policies over them."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlcd_core.policy import DecisionHead, LetterPolicy, SpanHead
from rlcd_core.policy.prompts import LABEL_CANDIDATES
from rlcd_core.schema import Choice, Noul, Score, render_prefix, render_suffix

STATE = "The server is down since noon. All customers are affected."
QUESTIONS = (
    Choice("Which team?", ["billing", "infrastructure", "security", "sales"]),
    Score("How urgent?", ["low", "normal", "high"]),
    Noul("Page the engineer on call?"),
)
KINDS = ("llama", "qwen3", "gpt2")


def _corpus() -> list[str]:
    prompts = [render_prefix(STATE) + render_suffix(q) for q in QUESTIONS]
    # Each label several times, so that the byte-pair merges make it one token.
    labels = [f"The answer is {label}" for label in LABEL_CANDIDATES[:190]]
    return prompts * 20 + labels * 40


@cache
def letter_tokenizer(start: str = "", seam: str = "clean") -> Any:
    """Byte-level BPE in which " A".." Z" and some of " AA".. are single tokens.

    ``start="<s>"`` puts a token before each text, as Llama 2 does; ``seam="merged"``
    lets a colon merge with the word after it, so that text tokenised apart differs.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if seam == "merged":
        pieces = Regex(r": \S+| ?\w+|\s+|[^\s\w]+")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(pieces, "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<|endoftext|>", "<pad>", "<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    if start:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, 2)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<pad>"
    )


def character_tokenizer() -> Any:
    """One token a byte: every label with its space is two tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=257,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["x"], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>"
    )


def confusing_tokenizer() -> Any:
    """A normaliser writes B as A: two labels share one token."""
    clone = Tokenizer.from_str(letter_tokenizer().backend_tokenizer.to_str())
    clone.normalizer = normalizers.Replace("B", "A")
    return PreTrainedTokenizerFast(tokenizer_object=clone, eos_token="<|endoftext|>")


def tiny_model(kind: str, seed: int = 0, window: int = 512, **fields: Any) -> Any:
    """A random causal model, 2 layers if not said; llama and qwen3 share key heads."""
    torch.manual_seed(seed)
    size = {
        "vocab_size": len(letter_tokenizer()),
        "initializer_range": 0.2,
        "bos_token_id": 2,
        "eos_token_id": 0,
        **fields,
    }
    if kind == "gpt2":
        config = GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=window, **size)
        return GPT2LMHeadModel(config).eval()
    size = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": window,
    } | size
    if kind == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(head_dim=8, **size)).eval()
    return LlamaForCausalLM(LlamaConfig(**size)).eval()


def tiny_bert(seed: int = 0) -> tuple[Any, Any]:
    """A random masked language model and its tokenizer, with [MASK]."""
    torch.manual_seed(seed)
    clone = Tokenizer.from_str(letter_tokenizer().backend_tokenizer.to_str())
    clone.add_special_tokens(["[MASK]"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=clone,
        eos_token="<|endoftext|>",
        pad_token="<pad>",
        mask_token="[MASK]",
    )
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    return BertForMaskedLM(config).eval(), tokenizer


def letter_policy(
    kind: str = "llama", window: int = 512, **options: Any
) -> LetterPolicy:
    """A letter policy over a random causal model; options as for `LetterPolicy`."""
    return LetterPolicy(tiny_model(kind, window=window), letter_tokenizer(), **options)


def tiny_encoder(folder: Path, seed: int = 0) -> Path:
    """A folder with a random bidirectional encoder and its tokenizer."""
    torch.manual_seed(seed)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    vocabulary = len(letter_tokenizer())
    config = BertConfig(vocab_size=vocabulary, num_hidden_layers=2, **size)
    BertModel(config).save_pretrained(folder)
    letter_tokenizer().save_pretrained(folder)
    return folder


class HashEncoder:
    """Unit vectors drawn from the hash of a text."""

    dim = 12

    def embed(self, texts: list[str]) -> np.ndarray:
        rows = []
        for text in texts:
            digest = hashlib.sha256(text.encode()).digest()
            rng = np.random.default_rng(list(digest))
            row = rng.normal(size=self.dim)
            rows.append(row / np.linalg.norm(row))
        return np.array(rows, np.float32)


def _spoken(head: Any, seed: int) -> Any:
    """An untrained head says 1/K everywhere: with random queries it does not."""
    with torch.no_grad():
        head.query.normal_(generator=torch.manual_seed(seed))
    return head


def tiny_head(rank: int = 4, seed: int = 0) -> DecisionHead:
    """A decision head with weights in both matrices, on hashed texts."""
    return _spoken(DecisionHead(HashEncoder(), rank), seed)


def tiny_spans(rank: int = 8, seed: int = 0, **options: Any) -> SpanHead:
    """A span head with weights in both matrices, on its own copy of an encoder."""
    model, tokenizer = tiny_bert()
    return _spoken(SpanHead(model.bert, tokenizer, rank, **options), seed)
