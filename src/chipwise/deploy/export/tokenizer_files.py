"""Settings of a tokenizer: special tokens, generation settings, chat template.

If ``tokenizer.json`` is in a Hugging Face folder, the settings are next to it and are copied unchanged. For a tokenizer
file alone, special tokens are recognised by their names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chipwise.core.fields import describe
from chipwise.core.files import read_mapping, read_text
from chipwise.errors import SpecError

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

    files: Mapping[str, bytes]  # contents by file name
    config_ids: Mapping[str, Any]  # special tokens for config.json: one id each, or a list if several tokens end a text
    roles: Mapping[str, int]  # ids of bos, eos and pad, if known
    adds_bos: bool  # whether a prompt begins with bos
    adds_eos: bool  # whether a prompt ends with eos
    chat_template: str | None


def read_tokenizer(path: Path, *, max_tokens: int, encoder: bool = False) -> TokenizerFiles:
    """The tokenizer at ``path`` with the settings in its folder, if any.

    Raises:
        SpecError: One of the files cannot be read.
    """
    data = read_mapping(path)
    folder = path.parent if path.name == TOKENIZER else None
    config = {} if folder is None else _optional(folder / CONFIG)
    added = added_tokens(data, file=str(path))
    ids = {token.content: token.id for token in added}
    special = [token.content for token in added if token.special]
    if config:
        config.pop("auto_map", None)  # refers to code that is not copied
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
        adds_bos=_adds(data, config, "bos", words.get("bos")),
        adds_eos=_adds(data, config, "eos", words.get("eos")),
        chat_template=_chat_template(config, folder),
    )


def ends_of(path: Path, about: TokenizerFiles) -> frozenset[int]:
    """Returns the tokens that end an answer; ``about`` is the result of reading the tokenizer at ``path``."""
    stated = _optional(path.with_name(GENERATION)).get("eos_token_id")
    ends = stated if stated is not None else about.config_ids.get("eos_token_id", about.roles.get("eos"))
    return frozenset(end for end in (ends if isinstance(ends, list) else [ends]) if isinstance(end, int))


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """An entry of ``added_tokens`` in tokenizer.json."""

    content: str
    id: int
    special: bool


def added_tokens(data: Mapping[str, Any], *, file: str) -> list[AddedToken]:
    """The tokens that a tokenizer.json adds to its vocabulary.

    Raises:
        SpecError: ``added_tokens`` is not a list of tokens, each with its text and number.
    """
    held = data.get("added_tokens", [])
    if not isinstance(held, list):
        raise SpecError(f"must be a list, not {describe(held)}", file=file, field="added_tokens")
    found = []
    for place, item in enumerate(held):
        text, number = (item.get("content"), item.get("id")) if isinstance(item, dict) else (None, None)
        if not isinstance(text, str) or not isinstance(number, int):
            raise SpecError("must have a content and an id", file=file, field=f"added_tokens[{place}]")
        found.append(AddedToken(content=text, id=number, special=bool(item.get("special"))))
    return found


def _by_name(special: list[str]) -> dict[str, str]:
    """Maps roles to special tokens. If there is only one special token, it separates texts and has all roles."""
    if len(special) == 1:
        return dict.fromkeys(_ROLES, special[0])
    return {role: found for role, names in _NAMES.items() if (found := next((n for n in names if n in special), None))}


def _adds(data: Mapping[str, Any], config: Mapping[str, Any], role: str, token: Any) -> bool:
    """Whether the token of ``role`` is added to prompts: ``bos`` before them, ``eos`` after them."""
    stated = config.get(f"add_{role}_token")
    if isinstance(stated, bool):
        return stated
    processor = _fields(data.get("post_processor"))
    steps = [processor, *map(_fields, _items(processor.get("processors")))]
    end = slice(0, 1) if role == "bos" else slice(-1, None)
    items = [_fields(item) for step in steps for item in _items(step.get("single"))[end]]
    return token is not None and any(_fields(item.get("SpecialToken")).get("id") == token for item in items)


def _chat_template(config: Mapping[str, Any], folder: Path | None) -> str | None:
    if folder is not None and (file := folder / "chat_template.jinja").is_file():
        return read_text(file)
    template = config.get("chat_template")
    if isinstance(template, list):
        named = map(_fields, template)
        template = next((item.get("template") for item in named if item.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _text(token: Any) -> str | None:
    """The text of a token, which a config stores as a string or in a mapping."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _optional(path: Path) -> dict[str, Any]:
    return read_mapping(path) if path.exists() else {}


def _fields(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()
