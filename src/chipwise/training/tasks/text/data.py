"""Tokenised text. Training reads windows; exported graphs are evaluated one entry at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from chipwise.deploy.export.gguf import export_if_possible
from chipwise.deploy.export.hf import save_pretrained
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.data.recipe import TEXT_TABLE_DECAY
from chipwise.training.data.text import load_corpus
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.tasks.protocol import Exported
from chipwise.training.tasks.token_data import TokenTaskData

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from chipwise.deploy.runtimes.onnxruntime import OnnxRuntimeSession

CONTINUATIONS, PROMPT_WORDS, CONTINUED_TOKENS = 10, 8, 32


class TextData(TokenTaskData[TokenStore]):
    """Text; see :class:`chipwise.training.tasks.protocol.TaskData`. Each vocabulary size has a tokenizer."""

    recipe: Mapping[str, object] = {"table_decay": TEXT_TABLE_DECAY}

    @classmethod
    def open(cls, data: Mapping[str, object], *, base: Path, folder: Path, space: SpaceSpec) -> Self:
        """Reads the text."""
        return cls(TokenStore(load_corpus(data, base=base), folder, space.vocab_size))

    def summary(self) -> Mapping[str, object]:
        """Name, source and licence of the text, and the number of entries and of bytes in each part."""
        return self.store.corpus.summary()

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, object]:
        """Greedy continuations, by winner and reference design, of the beginnings of test entries."""
        texts = [text for text in self.store.corpus.test if len(text.split()) > PROMPT_WORDS + 4][:CONTINUATIONS]
        prompts = [" ".join(text.split()[:PROMPT_WORDS]) for text in texts]
        found = [{"prompt": prompt} for prompt in prompts]
        for name, item in (("winner", winner), ("baseline", reference)):
            if item is not None:
                for one, text in zip(found, self._written(item, prompts), strict=True):
                    one[name] = text
        return {"continuations": found} if found else {}

    def _written(self, item: Exported, prompts: Sequence[str]) -> list[str]:
        from chipwise.deploy.runtimes.onnxruntime import OnnxRuntimeSession

        tokenizer = self.store.tokenizer(item.design.arch.vocab_size)
        longest = item.design.arch.max_tokens
        session = OnnxRuntimeSession(item.folder / "model.onnx", capacity=longest)
        return [continued(session, tokenizer, prompt, longest) for prompt in prompts]

    def ship(self, item: Exported, folder: Path, files: Mapping[str, str]) -> None:
        """Writes the Hugging Face folder, and ``model.gguf`` if ``gguf`` is installed and supports the model."""
        tokenizer = self.store.tokenizer_path(item.design.arch.vocab_size)
        save_pretrained(item.design.arch, item.weights, tokenizer, folder, dict(files))
        export_if_possible(item.design, item.weights, folder / "model.gguf", tokenizer=tokenizer, packing=item.packing)


def continued(session: OnnxRuntimeSession, tokenizer: Tokenizer, prompt: str, longest: int) -> str:
    """Greedy continuation of ``prompt``, up to the end of the entry."""
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids[: longest // 2]
    written: list[int] = []
    logits = session.prefill(np.array([[0, *ids]], np.int64))
    for _ in range(min(CONTINUED_TOKENS, longest - len(ids) - 1)):
        token = int(np.argmax(logits[0]))
        if token == 0:  # the separator ends an entry
            break
        written.append(token)
        logits = session.decode(np.array([[token]], np.int64))
    return str(tokenizer.decode(written))
