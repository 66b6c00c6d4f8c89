"""Wrong arguments are refused by name before anything is computed."""

from __future__ import annotations

import inspect
import math
from pathlib import Path

import numpy as np
import pytest

import chipwise
from chipwise.core import arguments
from chipwise.errors import ChipwiseError, InputError, MissingExtra, SpecError, UnknownName

FUNCTIONS = [getattr(chipwise, name) for name in chipwise.api.__all__ if inspect.isfunction(getattr(chipwise, name))]


def required_of(function):
    parameters = inspect.signature(function).parameters.values()
    return [item for item in parameters if item.default is inspect.Parameter.empty]


NEEDING = [function for function in FUNCTIONS if required_of(function)]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_every_hint_of_a_public_function_can_be_checked(function) -> None:
    original = inspect.unwrap(function)
    hints = arguments._hints(original)
    assert set(hints) == set(inspect.signature(original).parameters)


@pytest.mark.parametrize("function", NEEDING, ids=lambda each: each.__name__)
@pytest.mark.parametrize("value", [object(), 3.5j, b"bytes", [object()], float("nan")])
def test_no_public_function_lets_a_foreign_exception_out(function, value) -> None:
    required = required_of(function)
    with pytest.raises(ChipwiseError, match=required[0].name):
        function(**{item.name: value for item in required})


@pytest.mark.parametrize(
    ("call", "field", "words"),
    [
        (lambda: chipwise.estimate(3), "model", "must be text or a path or ArchSpec"),
        (lambda: chipwise.estimate("gpt2", batch="4"), "batch", "whole number, not text"),
        (lambda: chipwise.estimate("gpt2", batch=True), "batch", "whole number"),
        (lambda: chipwise.estimate("gpt2", batch=0), "batch", "at least 1, not 0"),
        (lambda: chipwise.estimate("gpt2", weights=""), "weights", "must not be empty"),
        (lambda: chipwise.estimate("gpt2", weights="  "), "weights", "must not be empty"),
        (lambda: chipwise.estimate("gpt2\0"), "model", "null character"),
        (lambda: chipwise.estimate("gpt2", devices=[]), "devices", "at least one"),
        (lambda: chipwise.estimate("gpt2", devices=[1]), "devices", "list of text"),
        (lambda: chipwise.compare(["gpt2"], devices=[]), "devices", "at least one"),
        (lambda: chipwise.compare("gpt2"), "models", "list of text"),
        (lambda: chipwise.compare([]), "models", "at least one"),
        (lambda: chipwise.estimate_training("gpt2", microbatches=0), "microbatches", "at least 1"),
        (lambda: chipwise.estimate_training("gpt2", batch=0), "batch", "at least 1"),
        (lambda: chipwise.estimate_training("gpt2", prompt=-1), "prompt", "at least 1"),
        (lambda: chipwise.estimate_training("gpt2", prompt=math.nan), "prompt", "whole number"),
        (lambda: chipwise.explain("gpt2", threads=-1), "threads", "at least 1"),
        (lambda: chipwise.explain("gpt2", device="here", threads=10**6), "threads", "at most"),
        (lambda: chipwise.calibrate(seconds=math.nan), "seconds", "number"),
        (lambda: chipwise.calibrate(seconds=-1.0), "seconds", "more than 0"),
        (lambda: chipwise.shrink("x", method="prune"), "method", "'prune' is not an accepted value"),
        (lambda: chipwise.search("x.yaml", workers=0), "workers", "at least 1"),
        (lambda: chipwise.uniform(vocab_size=8, d_model=8, depth=1, heads=0, ffn_width=8), "heads", "at least 1"),
        (lambda: chipwise.Attention(heads=4.0, kv_heads=4, head_size=4), "heads", "whole number"),
        (lambda: chipwise.FeedForward(width=4, activation="mish"), "activation", "'mish' is not an accepted value"),
        (lambda: chipwise.Layer(attention=3, ffn=None), "attention", "not a whole number"),
        (lambda: chipwise.Workload(prompt_tokens=math.nan), "prompt_tokens", "whole number"),
    ],
)
def test_an_argument_that_is_wrong_is_named(call, field, words) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        call()
    assert caught.value.field == field


def test_an_argument_that_is_not_known_or_missing_is_named() -> None:
    with pytest.raises(UnknownName, match="did you mean 'device'"):
        chipwise.estimate("gpt2", devise="l4")
    with pytest.raises(InputError, match=r"estimate\(\): missing a required argument: 'model'"):
        chipwise.estimate()


def test_numbers_beyond_what_a_float_holds_are_refused() -> None:
    for call in (
        lambda: chipwise.estimate("gpt2", batch=10**400),
        lambda: chipwise.calibrate(seconds=10**400),
        lambda: chipwise.quality("gpt2", tokens=10**400),
    ):
        with pytest.raises(SpecError, match="a whole number of 1329 bits is too large"):
            call()


def test_an_object_without_a_text_of_its_own_is_named_by_its_type() -> None:
    with pytest.raises(SpecError, match=r"device: must be text, not an object of type object$"):
        chipwise.explain("gpt2", device=object())


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InputError, match="checkpoint"):
        chipwise.explain("gpt2", device="l4", checkpoint=True)
    with pytest.raises(InputError, match="one of resume and restart"):
        chipwise.search("x.yaml", resume=True, restart=True)


def test_numbers_of_numpy_are_numbers() -> None:
    plain = chipwise.estimate("gpt2", device="l4", batch=2)
    assert chipwise.estimate("gpt2", device="l4", batch=np.int64(2)).tpot_s == plain.tpot_s


def test_a_missing_package_names_its_extra() -> None:
    @arguments.public
    def needs(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    with pytest.raises(MissingExtra, match=r"torch is not installed.*pip install 'chipwise\[search\]'"):
        needs("torch.nn")
    with pytest.raises(MissingExtra, match=r"scikit-learn is not installed.*chipwise\[tasks\]"):
        needs("sklearn")
    with pytest.raises(ModuleNotFoundError):
        needs("a_module_of_nobody")


def test_every_extra_that_an_error_names_exists() -> None:
    import tomllib

    from chipwise.core.extras import EXTRA_OF

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(EXTRA_OF.values()) <= set(project["project"]["optional-dependencies"])
