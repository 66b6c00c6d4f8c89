"""A small text that a tiny model can learn in a second, and a clock on which every step takes 1/64 s."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.training.data.text import Corpus
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.data.tokens import TokenData

SUBJECTS = ["the heart", "a lung", "the left hand", "one finger", "the skull"]
VERBS = ["is enlarged", "is absent", "shows a defect", "grows slowly"]
ENDINGS = ["at birth", "in adults", "after a fever", "without pain", "by chance", "in winter"]


TEST = tuple(f"{i} days after, {SUBJECTS[i % 5]} {VERBS[i % 4]}." for i in range(60))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    random = np.random.default_rng(0)
    entries = [f"{i}: {random.choice(SUBJECTS)} {random.choice(VERBS)} {random.choice(ENDINGS)}." for i in range(1500)]
    return Corpus(
        name="toy",
        train=tuple(entries[150:]),
        validation=tuple(entries[:150]),
        test=TEST,
        source="made up",
        licence="none",
    )


@pytest.fixture(scope="session")
def store(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    store = TokenStore(corpus, tmp_path_factory.mktemp("tokens"), [300])
    store.prepare()
    return store


@pytest.fixture(scope="session")
def data(store: TokenStore) -> TokenData:
    return store.tokens(300)


@pytest.fixture(scope="session")
def tokens_path(store: TokenStore) -> Path:
    return store.tokens_path(300)


@pytest.fixture(scope="session")
def arch() -> ArchSpec:
    return uniform(vocab_size=300, d_model=32, depth=1, heads=2, kv_heads=1, ffn_width=48)


@pytest.fixture
def clock() -> Callable[[], float]:
    """Each look at the clock is 1/64 s after the one before: a step, begun and ended by a look, takes that long."""
    ticks = count()
    return lambda: next(ticks) / 64
