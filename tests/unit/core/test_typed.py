"""Typed names as words."""

from __future__ import annotations

import pytest

from chipwise.core.typed import alike, left_of, memory_bytes, words_of


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("Llama-3.1-8B", ("llama", "3.1", "8b")),
        ("llama3.1:8b", ("llama", "3.1", "8b")),
        ("Qwen3-30B-A3B", ("qwen", "3", "30b", "a3b")),
        ("gemma-3n-e4b", ("gemma", "3", "n", "e4b")),
        ("Llama-4-Scout-17B-16E", ("llama", "4", "scout", "17b", "16e")),
        ("mixtral 8x7b", ("mixtral", "8x7b")),
        ("deepseek-r1", ("deepseek", "r1")),
        ("4070ti", ("4070", "ti")),
        ("m4max", ("m4", "max")),
        ("rtx 3060 12 GB", ("rtx", "3060", "12gb")),
        ("gpt2\0", ("gpt", "2", "\0")),
        ("Core™ i7-13700K", ("core", "i7", "13700", "k")),
        ("Xeon 8480+", ("xeon", "8480", "plus")),
    ],
)
def test_words(typed: str, words: tuple[str, ...]) -> None:
    assert words_of(typed) == words


def test_words_are_taken_as_often_as_they_stand_there() -> None:
    assert left_of(["a", "a", "b"], ["a"]) == ["a", "b"]


def test_memory_counts_in_powers_of_ten_and_of_two() -> None:
    assert memory_bytes("64gb") == (64e9, 64 * 2**30)
    assert memory_bytes("64b") is None


def test_names_that_share_more_words_come_first() -> None:
    known = {each: words_of(each) for each in ("qwen3-coder-30b", "qwen3-32b", "llama-3-8b")}
    assert alike(words_of("qwen3 coder 32b"), known) == ["qwen3-coder-30b", "qwen3-32b"]
