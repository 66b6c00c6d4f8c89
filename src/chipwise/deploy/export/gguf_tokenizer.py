"""Tokenizers in GGUF files: byte-level BPE as llama.cpp's ``gpt2``, SentencePiece BPE as its ``llama``.

A GGUF file does not describe how a text is split into words; it names one of llama.cpp's built-in pre-tokenizers. A
tokenizer that splits texts differently from all of these is refused. Token ids are unchanged.

References:
    Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section on tokenizers. Names and definitions of
    pre-tokenizers: llama.cpp's ``src/llama-vocab.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chipwise.core.files import read_mapping
from chipwise.deploy.export.tokenizer_files import AddedToken, added_tokens, read_tokenizer
from chipwise.errors import SpecError, Unsupported

if TYPE_CHECKING:
    from gguf import GGUFWriter

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # GGUF's codes of token types
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
SPLITS = {
    "gpt-2": ({"type": "ByteLevel", "use_regex": True},),
    "smollm": ({"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "use_regex": True}),
    "llama-bpe": ({"type": "Split", "pattern": {"Regex": LLAMA_3}}, {"type": "ByteLevel", "use_regex": False}),
    "dbrx": ({"type": "Split", "pattern": {"Regex": LLAMA_3}}, {"type": "ByteLevel", "use_regex": False}),
    "qwen2": ({"type": "Split", "pattern": {"Regex": QWEN_2}}, {"type": "ByteLevel", "use_regex": False}),
}
"""Steps of ``pre_tokenizer`` in a tokenizer.json, by llama.cpp's name of the equivalent split."""
WHOLE_WORDS = ("llama-bpe",)  # splits for which llama.cpp keeps a word that is a token, without merging
ROLE_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
}
SPACE = "▁"  # what SentencePiece writes for a space


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTokenizer:
    """The tokenizer of a GGUF file."""

    model: str  # gpt2 or llama
    pre: str
    tokens: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[str] = ()
    scores: Sequence[float] = ()
    roles: Mapping[str, int] = field(default_factory=dict)
    adds_bos: bool = False
    adds_eos: bool = False
    adds_space: bool = False
    chat_template: str | None = None

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], *, file: str) -> GgufTokenizer | None:
        """Reads the tokenizer from a file's fields; None if it has none.

        Raises:
            SpecError: A field is damaged.
            Unsupported: The tokenizer's model is neither gpt2 nor llama.
        """
        own = {name.removeprefix("tokenizer.ggml."): value for name, value in fields.items()}
        model = own.get("model", "none")
        if model == "none":
            return None
        if model not in ("gpt2", "llama"):
            raise Unsupported(f"{file}: its tokenizer is {model!r}, but only gpt2 and llama can be read")
        tokens = own.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise SpecError("must be a list of texts", file=file, field="tokenizer.ggml.tokens")
        kinds = own.get("token_type", [NORMAL] * len(tokens))
        if not isinstance(kinds, list) or len(kinds) != len(tokens):
            raise SpecError(f"must list {len(tokens)} values, one for each token", file=file, field="token_type")
        for key in ROLE_KEYS.values():
            number = own.get(key, 0)
            if not isinstance(number, int) or not 0 <= number < len(tokens):
                raise SpecError(f"is not one of the {len(tokens)} tokens", file=file, field=f"tokenizer.ggml.{key}")
        return cls(
            model=model,
            pre=own.get("pre", "default"),
            tokens=tokens,
            kinds=kinds,
            merges=own.get("merges", ()),
            scores=own.get("scores", ()),
            roles={role: own[key] for role, key in ROLE_KEYS.items() if key in own},
            adds_bos=own.get("add_bos_token", model == "llama" or own.get("pre") in WHOLE_WORDS),
            adds_eos=own.get("add_eos_token", False),
            adds_space=own.get("add_space_prefix", model == "llama"),
            chat_template=fields.get("tokenizer.chat_template"),
        )

    def write(self, writer: GGUFWriter) -> None:
        """Adds the tokenizer's fields to a file."""
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.kinds)
        if self.scores:
            writer.add_token_scores(self.scores)
        if self.merges:
            writer.add_token_merges(self.merges)
        for role, number in self.roles.items():
            getattr(writer, f"add_{role}_token_id")(number)
        writer.add_add_bos_token(self.adds_bos)
        writer.add_add_eos_token(self.adds_eos)
        writer.add_add_space_prefix(self.adds_space)
        if self.chat_template is not None:
            writer.add_chat_template(self.chat_template)


def gguf_tokenizer(path: Path, *, vocab_size: int, max_tokens: int) -> GgufTokenizer:
    """Converts the tokenizer at ``path``, a ``tokenizer.json``, to its GGUF form.

    Raises:
        SpecError: The file is damaged, or has more tokens than the model.
        Unsupported: GGUF cannot represent it; the message says why.
    """
    data = read_mapping(path)
    model = data.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict | list):
        raise SpecError("must contain the vocabulary", file=str(path), field="model.vocab")
    if model.get("type") != "BPE":
        raise Unsupported(f"{path}: llama.cpp's tokenizers are BPE; this one is {model.get('type')}")
    if not isinstance(model["vocab"], dict) or not all(isinstance(i, int) for i in model["vocab"].values()):
        raise SpecError("must map tokens to their numbers", file=str(path), field="model.vocab")
    added = {token.id: token for token in added_tokens(data, file=str(path))}
    words = {number: word for word, number in model["vocab"].items()} | {i: t.content for i, t in added.items()}
    if max(words, default=-1) >= vocab_size:
        raise SpecError(f"has {max(words) + 1} tokens; the model has {vocab_size}", file=str(path))
    tokens = [words.get(number, f"[unused {number}]") for number in range(vocab_size)]
    kinds = [_kind(number, words, added) for number in range(vocab_size)]
    merges = _merges(path, model.get("merges", []))
    used = read_tokenizer(path, max_tokens=max_tokens)
    settings: dict[str, Any] = {
        "tokens": tokens,
        "roles": dict(used.roles),
        "adds_bos": used.adds_bos,
        "adds_eos": used.adds_eos,
        "chat_template": used.chat_template,
    }
    if model.get("byte_fallback"):
        return _sentencepiece(path, data, kinds, merges, settings)
    pre = _split_name(path, data)
    return GgufTokenizer(model="gpt2", pre=pre, kinds=kinds, merges=[" ".join(pair) for pair in merges], **settings)


def _merges(path: Path, held: Any) -> list[tuple[str, ...]]:
    """Pairs of tokens, which a tokenizer.json stores as lists, or as texts with a space between."""
    found = []
    for place, pair in enumerate(held if isinstance(held, list) else [None]):
        parts = pair.split(" ") if isinstance(pair, str) else pair
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise SpecError("must be two tokens", file=str(path), field=f"model.merges[{place}]")
        found.append(tuple(parts))
    return found


def _kind(number: int, words: Mapping[int, str], added: Mapping[int, AddedToken]) -> int:
    if number in added:
        return CONTROL if added[number].special else USER_DEFINED
    return NORMAL if number in words else UNUSED


def _steps(part: Any, inside: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, flattened."""
    if not isinstance(part, dict):
        return []
    steps = part.get(inside, []) if part.get("type") == "Sequence" else [part]
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def _split_name(path: Path, data: Mapping[str, Any]) -> str:
    """Returns llama.cpp's name for the way in which the tokenizer splits text into words."""
    steps = _steps(data.get("pre_tokenizer"), "pretokenizers")
    for step in steps:
        if step.get("add_prefix_space"):
            raise Unsupported(f"{path}: it puts a space before each text, but llama.cpp's byte-level BPE does not")
        if step.get("type") == "Split" and (step.get("behavior") != "Isolated" or step.get("invert")):
            raise Unsupported(f"{path}: it drops word separators, but llama.cpp's byte-level BPE keeps them")
    others = [step.get("type") for step in _steps(data.get("normalizer"), "normalizers") if step.get("type") != "NFC"]
    if others:
        raise Unsupported(
            f"{path}: it changes texts ({', '.join(map(str, others))}) before it splits them, but llama.cpp's "
            "byte-level BPE does not"
        )
    whole = bool(data["model"].get("ignore_merges"))
    for name, wanted in SPLITS.items():
        if len(steps) == len(wanted) and all(map(_is_step, steps, wanted)) and whole == (name in WHOLE_WORDS):
            return name
    raise Unsupported(
        f"{path}: llama.cpp has no name for how this tokenizer splits words; it knows {', '.join(SPLITS)}"
    )


def _is_step(step: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    usual = {"use_regex": True, "individual_digits": False}
    return all(step.get(key, usual.get(key)) == value for key, value in wanted.items())


def _sentencepiece(
    path: Path,
    data: Mapping[str, Any],
    kinds: list[int],
    merges: Sequence[tuple[str, ...]],
    settings: Mapping[str, Any],
) -> GgufTokenizer:
    """Converts a SentencePiece tokenizer: llama.cpp merges the pair whose result has the highest score.

    A token's score is minus the rank of the first merge that creates it. This gives the same tokens only if there is a
    merge for every two tokens that together spell another token. Tokenizers converted from SentencePiece have them all.
    """
    spaces = _steps(data.get("normalizer"), "normalizers") + _steps(data.get("pre_tokenizer"), "pretokenizers")
    prefix = any(
        step.get("type") == "Prepend" or (step.get("type") == "Metaspace" and step.get("prepend_scheme") != "never")
        for step in spaces
    )
    others = {str(step.get("type")) for step in spaces} - {"Prepend", "Replace", "Metaspace"}
    if others or not spaces:
        raise Unsupported(f"{path}: llama.cpp's SentencePiece has no steps {', '.join(sorted(others)) or 'for spaces'}")
    tokens: Sequence[str] = settings["tokens"]
    joined = [left + right for left, right in merges]
    made: dict[str, int] = {}
    for rank, word in enumerate(joined):
        made.setdefault(word, rank)
    known, pairs = {token for token, kind in zip(tokens, kinds, strict=True) if kind == NORMAL}, set(merges)
    for word in made:
        for i in range(1, len(word)):
            if word[:i] in known and word[i:] in known and (word[:i], word[i:]) not in pairs:
                raise Unsupported(
                    f"{path}: {word[:i]!r} and {word[i:]!r} form a token but are not a merge; llama.cpp would join them"
                )
    kinds = [BYTE if _is_byte(token) else kind for token, kind in zip(tokens, kinds, strict=True)]
    unknown = data["model"].get("unk_token")
    roles = dict(settings["roles"])
    if unknown in tokens:
        roles["unk"] = tokens.index(unknown)
        kinds[roles["unk"]] = UNKNOWN
    scores = [-float(made.get(token, len(merges))) for token in tokens]
    return GgufTokenizer(
        model="llama",
        pre="default",
        kinds=kinds,
        scores=scores,
        adds_space=prefix,
        **{**settings, "roles": roles},
    )


def _is_byte(token: str) -> bool:
    """Whether a token is a single byte, such as ``<0x0A>``."""
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def hugging_face_files(tokenizer: GgufTokenizer, *, max_tokens: int) -> dict[str, Any]:
    """The tokenizer of a GGUF file as the files of a Hugging Face folder, by name.

    Raises:
        Unsupported: The tokenizer is SentencePiece's, whose merges a GGUF file does not store, or its split is not
            supported.
    """
    if tokenizer.model != "gpt2" or tokenizer.pre not in SPLITS:
        kind = f"a {tokenizer.model} tokenizer with the split {tokenizer.pre!r}"
        raise Unsupported(f"{kind} cannot be written as tokenizer.json; only gpt2 with {', '.join(SPLITS)} can")
    named = list(enumerate(zip(tokenizer.tokens, tokenizer.kinds, strict=True)))
    whole: dict[str, dict[str, Any]] = {
        "ByteLevel": {"add_prefix_space": False, "trim_offsets": True},
        "Split": {"behavior": "Isolated", "invert": False},
    }
    steps = [whole.get(str(step["type"]), {}) | step for step in SPLITS[tokenizer.pre]]
    words = {role: tokenizer.tokens[number] for role, number in tokenizer.roles.items()}
    around = [
        role for role, adds in (("bos", tokenizer.adds_bos), ("eos", tokenizer.adds_eos)) if adds and role in words
    ]
    template = [{"SpecialToken": {"id": words[role], "type_id": 0}} for role in around]
    template.insert(int("bos" in around), {"Sequence": {"id": "A", "type_id": 0}})
    processor = {
        "type": "TemplateProcessing",
        "single": template,
        "pair": [*template, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            words[role]: {"id": words[role], "ids": [tokenizer.roles[role]], "tokens": [words[role]]} for role in around
        },
    }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": token, **flags, "special": kind == CONTROL}
            for number, (token, kind) in named
            if kind in (CONTROL, USER_DEFINED)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": processor if around else None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, (token, kind) in named if kind != UNUSED},
            "merges": list(tokenizer.merges),
            "ignore_merges": tokenizer.pre in WHOLE_WORDS,
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_tokens,
        "clean_up_tokenization_spaces": False,
        **{f"{role}_token": word for role, word in words.items()},
    }
    if tokenizer.chat_template is not None:
        config["chat_template"] = tokenizer.chat_template
    return {"tokenizer.json": data, "tokenizer_config.json": config}
