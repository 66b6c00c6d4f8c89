"""Tiny pretrained models: random ones that transformers made, in folders with a tokenizer."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

WORDS = ["".join(letters) for letters in (f"{a}{b}{c}" for a in "abcd" for b in "efgh" for c in "ijk")]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]


def shaken(model: torch.nn.Module) -> torch.nn.Module:
    """The model with no weight at 0 or 1, so that nothing is right by chance."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def bert_folder(folder: Path, **changes: object) -> Path:
    torch.manual_seed(0)
    fields = {"vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    fields |= {"intermediate_size": 64, "max_position_embeddings": 24}
    shaken(BertModel(BertConfig(**fields | changes))).save_pretrained(folder)
    return with_tokenizer(folder)


def decoder_folder(folder: Path, kind: str = "llama") -> Path:
    torch.manual_seed(0)
    fields = {"vocab_size": len(VOCABULARY), "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    fields |= {"num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 32}
    makers = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen2": (Qwen2ForCausalLM, Qwen2Config)}
    model, config = makers[kind]
    made = model(config(**fields, tie_word_embeddings=kind == "qwen2", bos_token_id=2, eos_token_id=3))
    shaken(made).save_pretrained(folder)
    return with_tokenizer(folder)


def with_tokenizer(folder: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(VOCABULARY[:4])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_padding(length=20)  # as published tokenizers have it
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def text_file(path: Path, lines: int = 900) -> Path:
    chosen = random.Random(0)
    path.write_text("\n".join(" ".join(chosen.choices(WORDS, k=chosen.randint(4, 12))) for _ in range(lines)))
    return path


def some_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """Three texts of 9, 4 and 7 tokens, padded after their ends."""
    tokens = torch.from_numpy(np.random.default_rng(0).integers(4, len(VOCABULARY), (3, 9)))
    mask = torch.arange(9)[None] < torch.tensor([9, 4, 7])[:, None]
    return tokens * mask, mask
