"""The settings of a tokenizer: special tokens, generation settings, chat template.

A ``tokenizer.json`` in a Hugging Face folder has them next to it, and they are kept as they are. Of a tokenizer alone,
the special tokens are recognised by their names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chipwise.core.errors import SpecError
from chipwise.core.files import read_json

TOKENIZER, CONFIG, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
_KEPT = (GENERATION, "special_tokens_map.json", "chat_template.jinja", "chat_template.json")
_ROLES = ("bos", "eos", "pad")
_NAMES = {
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[BOS]"),
    "eos": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>", "[EOS]"),
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>"),
}
_ENCODER_ROLES = ("cls", "sep", "pad", "unk", "mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """The files of a folder with this tokenizer, and its special tokens."""

    files: Mapping[str, bytes]  # by name
    config_ids: Mapping[str, Any]  # of config.json: a token's number, or several where any of them ends a text
    roles: Mapping[str, int]  # bos, eos and pad, as far as they are known
    adds_bos: bool  # whether a prompt begins with bos
    chat_template: str | None


def read_tokenizer(path: Path, *, max_tokens: int, encoder: bool = False) -> TokenizerFiles:
    """The tokenizer at ``path`` with the settings of its folder, where it has one.

    Raises:
        SpecError: One of the files cannot be read.
    """
    data = _mapping(path)
    folder = path.parent if path.name == TOKENIZER else None
    config = {} if folder is None else _optional(folder / CONFIG)
    ids = {str(token["content"]): int(token["id"]) for token in data.get("added_tokens", [])}
    special = [str(token["content"]) for token in data.get("added_tokens", []) if token.get("special")]
    if config:
        config.pop("auto_map", None)  # names code that is not part of this folder
        words = {role: word for role in _ROLES if (word := _text(config.get(f"{role}_token"))) in ids}
    else:
        words = _by_name(special)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_tokens,
            "clean_up_tokenization_spaces": False,
            **{f"{role}_token": word for role, word in words.items() if not encoder},
        }
        if encoder:
            config |= {f"{role}_token": f"[{role.upper()}]" for role in _ENCODER_ROLES if f"[{role.upper()}]" in ids}
    roles = {role: ids[str(word)] for role, word in words.items()}
    stated = {} if folder is None else _optional(folder / "config.json")
    config_ids: dict[str, Any] = {f"{role}_token_id": number for role, number in roles.items()}
    if encoder:
        config_ids = {name: number for name, number in config_ids.items() if name == "pad_token_id"}
    config_ids |= {name: stated[name] for role in _ROLES if stated.get(name := f"{role}_token_id") is not None}
    roles |= {r: n for r in _ROLES if r not in roles and isinstance(n := config_ids.get(f"{r}_token_id"), int)}
    files = {TOKENIZER: path.read_bytes(), CONFIG: _json(config)}
    if folder is not None:
        files |= {name: (folder / name).read_bytes() for name in _KEPT if (folder / name).is_file()}
    if not encoder:
        files.setdefault(GENERATION, _json(config_ids))
    return TokenizerFiles(
        files=files,
        config_ids=config_ids,
        roles=roles,
        adds_bos=_adds_bos(data, config, words.get("bos")),
        chat_template=_chat_template(config, folder),
    )


def _by_name(special: list[str]) -> dict[str, str]:
    """Special tokens by role; a single one is all of them: it divides texts."""
    if len(special) == 1:
        return dict.fromkeys(_ROLES, special[0])
    return {role: found for role, names in _NAMES.items() if (found := next((n for n in names if n in special), None))}


def _adds_bos(data: Mapping[str, Any], config: Mapping[str, Any], bos: Any) -> bool:
    stated = config.get("add_bos_token")
    if isinstance(stated, bool):
        return stated
    processor = data.get("post_processor") or {}
    first = [step.get("single", [{}])[:1] for step in (processor, *processor.get("processors", []))]
    return bos is not None and any(item and item[0].get("SpecialToken", {}).get("id") == bos for item in first)


def _chat_template(config: Mapping[str, Any], folder: Path | None) -> str | None:
    if folder is not None and (file := folder / "chat_template.jinja").is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((item.get("template") for item in template if item.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _text(token: Any) -> str | None:
    """A token's text, which a config states plainly or with its properties."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _optional(path: Path) -> dict[str, Any]:
    return _mapping(path) if path.is_file() else {}


def _mapping(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise SpecError("must be a mapping of fields", file=str(path))
    return found


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()
