import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.core.digest import digest
from chipwise.errors import DataError, InputError, StudyError
from chipwise.training.data.text import Corpus
from chipwise.training.data.tokenizer import (
    SEPARATOR,
    Splitter,
    TokenStore,
    cut,
    encode,
    load_tokenizer,
    load_tokens,
    train_tokenizer,
)

WORDS = ["fever", "heart", "failure", "of", "the", "left", "right", "lung", "acute", "chronic", "naïve", "œdema"]


def corpus(seed: int = 0, count: int = 400) -> Corpus:
    random = np.random.default_rng(seed)
    entries = [" ".join(random.choice(WORDS, size=12)) + f" {i}" for i in range(count)]
    return Corpus(
        name="words",
        train=tuple(entries[70:]),
        validation=tuple(entries[:50]),
        test=tuple(entries[50:70]),
        source="made up",
        licence="none",
    )


LARGE = train_tokenizer(corpus().train, 420)


@pytest.mark.parametrize("size", [257, 300, 419, 420])
def test_a_cut_tokenizer_is_the_one_that_training_for_its_size_gives(size: int) -> None:
    trained = train_tokenizer(corpus().train, size)
    assert json.loads(cut(LARGE, size).to_str()) == json.loads(trained.to_str())


@given(st.text(max_size=80) | st.lists(st.sampled_from([*WORDS, "hearth", "lefty"]), max_size=9).map(" ".join))
@pytest.mark.parametrize("size", [257, 258, 300, 419, 420])
def test_tokens_that_are_split_are_those_of_the_smaller_tokenizer(size: int, text: str) -> None:
    texts = [text.replace(SEPARATOR, ""), "heart failure"]
    assert Splitter(LARGE, size)(encode(LARGE, texts)).tolist() == encode(cut(LARGE, size), texts).tolist()


def test_tokens_are_not_split_where_it_is_unknown_how_they_were_made() -> None:
    """Another merge that makes a token that one already makes; and the last token without its merge."""
    from tokenizers import Tokenizer

    state = json.loads(LARGE.to_str())
    model = state["model"]
    known, made = {tuple(pair) for pair in model["merges"]}, model["vocab"]
    halves = ((word[:i], word[i:]) for word in made if made[word] >= 300 for i in range(1, len(word)))
    other = next(pair for pair in halves if pair not in known and pair[0] in made and pair[1] in made)
    model["merges"].append(list(other))
    with pytest.raises(InputError, match=f"two merges create the token '{''.join(other)}'"):
        Splitter(Tokenizer.from_str(json.dumps(state)), 300)
    model["merges"] = model["merges"][:-2]
    with pytest.raises(InputError, match="not the result of a merge"):
        Splitter(Tokenizer.from_str(json.dumps(state)), 300)


@given(st.text(max_size=80))
def test_any_text_survives_the_round_trip(text: str) -> None:
    plain = text.replace(SEPARATOR, "")
    assert LARGE.decode(LARGE.encode(plain).ids) == plain


def test_a_stream_separates_its_entries() -> None:
    smallest = cut(LARGE, 257)  # no merges: one token a byte
    stream = encode(smallest, ["ab", "c"])
    assert stream.dtype == np.uint16
    assert [smallest.id_to_token(int(token)) for token in stream] == [SEPARATOR, "a", "b", SEPARATOR, "c", SEPARATOR]


def test_kept_tokens_are_those_that_were_made(tmp_path: Path) -> None:
    text = corpus()
    store = TokenStore(text, tmp_path, [300, 420])
    store.prepare()
    for size in (300, 420):
        data = load_tokens(store.tokens_path(size))
        assert np.array_equal(data.train, encode(cut(LARGE, size), text.train))
        assert data.bytes_train == text.bytes_train
        assert int(data.validation_bytes.sum()) == text.bytes_validation
        assert np.array_equal(data.test, encode(cut(LARGE, size), text.test))
        assert int(data.test_bytes.sum()) == text.bytes_test
        assert data.bytes_per_token == pytest.approx(text.bytes_train / (len(data.train) - 1))
        assert int(data.train.max()) < size


def test_a_prefix_holds_the_same_entries_in_every_vocabulary(tmp_path: Path) -> None:
    text = corpus()
    store = TokenStore(text, tmp_path, [300, 420])
    first_two = sum(len(entry.encode()) for entry in text.validation[:2])
    for size in (300, 420):
        data, tokenizer = store.tokens(size), store.tokenizer(size)
        for limit, count in ((first_two, 2), (first_two + 1, 2), (0, 1), (None, 50)):
            stream, size_bytes = data.held_out(max_bytes=limit)
            assert np.array_equal(stream, encode(tokenizer, text.validation[:count]))
            assert size_bytes == sum(len(entry.encode()) for entry in text.validation[:count])
        stream, size_bytes = data.held_out("test")
        assert np.array_equal(stream, encode(tokenizer, text.test))
        assert size_bytes == text.bytes_test


def test_tokens_of_another_text_are_refused(tmp_path: Path) -> None:
    TokenStore(corpus(0), tmp_path, [300]).prepare()
    with pytest.raises(StudyError, match="a different text"):
        TokenStore(corpus(1), tmp_path, [300]).tokenizer(300)


def test_tokens_of_a_text_that_was_divided_in_two_are_refused(tmp_path: Path) -> None:
    text = corpus()
    TokenStore(text, tmp_path, [300]).prepare()
    (tmp_path / "corpus.digest").write_text(digest([text.train + text.test, text.validation]) + "\n")
    with pytest.raises(StudyError, match="without a test part"):
        TokenStore(text, tmp_path, [300]).prepare()


def test_a_corpus_without_test_text_has_no_test_score(tmp_path: Path) -> None:
    store = TokenStore(dataclasses.replace(corpus(), test=()), tmp_path, [300])
    with pytest.raises(InputError, match="no test text"):
        store.tokens(300).held_out("test")


def test_impossible_vocabularies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="257"):
        TokenStore(corpus(), tmp_path, [256])
    with pytest.raises(InputError, match="65536"):
        cut(LARGE, 70_000)
    with pytest.raises(DataError, match="different tokens"):
        train_tokenizer(["aaaa"], 1000)


def test_files_that_hold_no_tokens_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_tokens(tmp_path / "none.npz")
    store = TokenStore(corpus(), tmp_path, [300])
    store.prepare()
    whole = store.tokens_path(300).read_bytes()
    for kept in (b"not tokens", whole[: len(whole) // 2], whole[:3], b""):
        store.tokens_path(300).write_bytes(kept)
        with pytest.raises(DataError, match="delete it"):
            load_tokens(store.tokens_path(300))
    for kept in ("", "{", "{}"):
        store.tokenizer_path(300).write_text(kept)
        with pytest.raises(DataError, match=r"tokenizer-300\.json: has no tokenizer"):
            store.tokenizer(300)
    store.tokenizer_path(300).write_text('{"version": "1.0", "decoder": 5}')
    with pytest.raises(DataError, match=r"has no tokenizer \(broken at line 1 column \d+\); restore it"):
        load_tokenizer(store.tokenizer_path(300))
    store.tokenizer_path(300).unlink()
    os.mkfifo(store.tokenizer_path(300))
    with pytest.raises(DataError, match="pipe or device"):
        load_tokenizer(store.tokenizer_path(300))
