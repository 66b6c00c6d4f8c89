"""Tokenizers in GGUF files: llama.cpp cuts texts into the tokens that Hugging Face's tokenizers cut them into."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="gguf is not installed; it comes with: pip install 'chipwise[gguf]'")
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from chipwise.deploy.export.gguf import export
from chipwise.deploy.export.gguf_read import GgufFile
from chipwise.deploy.export.gguf_tokenizer import LLAMA_3, QWEN_2, GgufTokenizer, gguf_tokenizer
from chipwise.deploy.export.onnx import random_weights
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design

ARCH = uniform(vocab_size=400, d_model=32, depth=1, heads=1, kv_heads=1, ffn_width=32, max_tokens=64, name="small")
CORPUS = [
    "The old library opened its doors; it's 3 days, 1234 books and they'll stay.",
    "Ärzte prüfen größere Öfen, naïve cafés",
    "日本語のテキスト 🙂🙂 emoji",
    "for i in range(10):\n    print(i)\n\n\treturn x",
] * 6
TEXTS = (
    "",
    "a",
    " a",
    "The old library's doors",
    "THE LIBRARY'S 12345 books, 3.14!",
    "  two  spaces\n\nlines \t tabs ",
    "Grüße aus Köln, naïve café",
    "日本 🙂 👩‍🚀",
    "x = [1, 22, 333]; print(x)\r\n",
    "<|im_start|>user\nhello<|im_end|>",
    "before <|im_end|> behind",
    "they'll I'M 'tis",
)


def split_by(regex: str) -> pre_tokenizers.PreTokenizer:
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), whole])


SPLITS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": split_by(LLAMA_3),
    "dbrx": split_by(LLAMA_3),
    "qwen2": split_by(QWEN_2),
}


def byte_level(split: pre_tokenizers.PreTokenizer, *, whole_words: bool = False) -> Tokenizer:
    made = Tokenizer(models.BPE(ignore_merges=whole_words))
    made.pre_tokenizer, made.decoder = split, decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def sentencepiece(*, prefix: bool = True) -> Tokenizer:
    """Pieces of a few words with every pair that makes one, as a conversion from SentencePiece has them."""
    pieces = ["▁th", "▁the", "he", "▁a", "in", "er", "▁l", "▁li", "br", "▁lib", "ar", "▁▁", "ing"]
    letters = sorted({letter for text in CORPUS for letter in text.replace(" ", "▁")} - set("日本🙂"))
    special = ["<unk>", "<s>", "</s>"]
    tokens = [*special, *(f"<0x{i:02X}>" for i in range(256)), *letters, "▁t", *pieces]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    pairs = [
        (vocab[word], left, i, (word[:i], word[i:]))
        for word, left in ((word, vocab.get(word[:1], 0)) for word in vocab if word not in special and word[:2] != "<0")
        for i in range(1, len(word))
        if word[:i] in vocab and word[i:] in vocab
    ]
    merges = [pair for *_, pair in sorted(pairs)]
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Prepend("▁")] if prefix else []
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocab["<s>"])])
    return made


def saved(folder: Path, tokenizer: Tokenizer, **config: object) -> Path:
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def in_llama_cpp(folder: Path, tokenizer: Path):
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed; it comes with: pip install 'chipwise[all]'")
    from chipwise.deploy.runtimes.llama_server import LlamaServer

    path = export(Design(arch=ARCH), random_weights(ARCH, seed=0), folder / "model.gguf", tokenizer=tokenizer)
    return LlamaServer(path, context=64)


@pytest.mark.parametrize("name", SPLITS)
def test_byte_level_tokens_are_those_of_tokenizers(tmp_path, name) -> None:
    ours = byte_level(SPLITS[name], whole_words=name == "llama-bpe")
    path = saved(tmp_path, ours)
    assert gguf_tokenizer(path, vocab_size=400, max_tokens=64).pre == name
    theirs = in_llama_cpp(tmp_path, path)
    for text in TEXTS:
        assert theirs.tokens(text) == ours.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_tokens_are_those_of_tokenizers(tmp_path, prefix) -> None:
    ours = sentencepiece(prefix=prefix)
    theirs = in_llama_cpp(tmp_path, saved(tmp_path, ours))
    for text in (*TEXTS, "the library in a larger thing", "before </s> behind"):
        assert theirs.tokens(text) == ours.encode(text, add_special_tokens=False).ids, text
        assert theirs.tokens(text, special=True) == ours.encode(text).ids, text


@pytest.mark.parametrize(("bos", "eos"), [(True, False), (True, True), (False, True), (False, False)])
def test_texts_begin_and_end_as_the_tokenizer_says(tmp_path, bos, eos) -> None:
    ours = byte_level(SPLITS["gpt-2"])
    begin, end = ("<|im_start|>" if bos else None), ("<|im_end|>" if eos else None)
    single = " ".join(part for part in (begin, "$A", end) if part)
    numbers = [(token, ours.token_to_id(token)) for token in (begin, end) if token]
    ours.post_processor = processors.TemplateProcessing(single=single, special_tokens=numbers)
    path = saved(tmp_path, ours, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|endoftext|>")
    found = gguf_tokenizer(path, vocab_size=400, max_tokens=64)
    assert (found.adds_bos, found.adds_eos, found.roles) == (bos, eos, {"bos": 1, "eos": 2, "pad": 0})
    theirs = in_llama_cpp(tmp_path, path)
    for text in TEXTS[1:]:
        assert theirs.tokens(text, special=True) == ours.encode(text).ids


def test_a_tokenizer_is_read_back_from_its_file(tmp_path) -> None:
    for tokenizer in (byte_level(SPLITS["smollm"]), sentencepiece()):
        wanted = gguf_tokenizer(saved(tmp_path, tokenizer), vocab_size=400, max_tokens=64)
        path = export(Design(arch=ARCH), random_weights(ARCH, seed=0), tmp_path / "model.gguf", tokenizer=wanted)
        found = GgufTokenizer.of_fields(GgufFile.open(path).fields, file=str(path))
        assert found is not None
        for name in ("model", "pre", "adds_bos", "adds_eos", "adds_space", "roles"):
            assert getattr(found, name) == getattr(wanted, name), name
        for name in ("tokens", "kinds", "merges", "scores"):
            assert list(getattr(found, name)) == list(getattr(wanted, name)), name


def test_a_file_without_a_tokenizer_says_so(tmp_path) -> None:
    path = export(Design(arch=ARCH), random_weights(ARCH, seed=0), tmp_path / "model.gguf")
    assert GgufTokenizer.of_fields(GgufFile.open(path).fields, file=str(path)) is None
    with pytest.raises(Unsupported, match="its tokenizer is 't5'"):
        GgufTokenizer.of_fields({"tokenizer.ggml.model": "t5"}, file="model.gguf")


def changed(tokenizer: Tokenizer, **parts: object) -> dict:
    return {**json.loads(tokenizer.to_str()), **parts}


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (changed(Tokenizer(models.WordPiece({"a": 0}, unk_token="a"))), "this one is WordPiece"),
        (changed(Tokenizer(models.Unigram([("a", 0.0)]))), "this one is Unigram"),
        (
            changed(Tokenizer(models.BPE({"a": 0}, [])), pre_tokenizer={"type": "Whitespace"}),
            "no name for how this tokenizer splits words; it knows gpt-2, smollm",
        ),
        (
            changed(Tokenizer(models.BPE({"a": 0}, [])), pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True}),
            "puts a space before each text",
        ),
        (
            changed(
                Tokenizer(models.BPE({"a": 0}, [])),
                pre_tokenizer={"type": "Split", "pattern": {"Regex": LLAMA_3}, "behavior": "Removed"},
            ),
            "drops word separators",
        ),
        (
            changed(Tokenizer(models.BPE({"a": 0}, [])), normalizer={"type": "Lowercase"}),
            r"changes texts \(Lowercase\) before",
        ),
        (
            changed(
                Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "aba": 3, "ba": 4}, [("a", "b"), ("ab", "a")])),
                model={
                    "type": "BPE",
                    "vocab": {"a": 0, "b": 1, "ab": 2, "aba": 3, "ba": 4},
                    "merges": ["a b", "ab a"],
                    "byte_fallback": True,
                },
                normalizer={"type": "Replace"},
            ),
            "'a' and 'ba' form a token but are not a merge",
        ),
    ],
)
def test_what_gguf_cannot_express_is_refused_by_name(tmp_path, data, named) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data))
    with pytest.raises(Unsupported, match=named):
        gguf_tokenizer(path, vocab_size=400, max_tokens=64)


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ({}, r"model\.vocab"),
        ({"type": "BPE", "vocab": ["a"]}, r"model\.vocab"),
        ({"type": "BPE", "vocab": {"a": "b"}}, r"model\.vocab"),
        ({"type": "BPE", "vocab": {"a": 0}, "merges": "a b"}, r"model\.merges\[0\]"),
        ({"type": "BPE", "vocab": {"a": 0}, "merges": ["a a", "a"]}, r"model\.merges\[1\]"),
        ({"type": "BPE", "vocab": {"a": 0}, "merges": [["a", 1]]}, r"model\.merges\[0\]"),
    ],
)
def test_damaged_tokenizers_name_the_field(tmp_path, model, field) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, "pre_tokenizer": {"type": "Sequence"}}))
    with pytest.raises(SpecError, match=field):
        gguf_tokenizer(tmp_path / "tokenizer.json", vocab_size=400, max_tokens=64)


@pytest.mark.parametrize(
    "changes", [{"tokens": None}, {"tokens": [1]}, {"token_type": [1]}, {"eos_token_id": 9}, {"bos_token_id": "a"}]
)
def test_damaged_fields_of_a_file_are_named(changes) -> None:
    fields = {"model": "gpt2", "tokens": ["a", "b"], "token_type": [1, 1]} | changes
    with pytest.raises(SpecError, match=next(iter(changes))):
        GgufTokenizer.of_fields({f"tokenizer.ggml.{name}": value for name, value in fields.items()}, file="m.gguf")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    saved(tmp_path, byte_level(SPLITS["gpt-2"]))
    with pytest.raises(SpecError, match="the model has 40"):
        export(
            Design(arch=ARCH.of_vocabulary(40)),
            random_weights(ARCH.of_vocabulary(40), seed=0),
            tmp_path / "model.gguf",
            tokenizer=path,
        )
