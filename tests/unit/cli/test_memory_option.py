"""``--memory`` says the same as a size typed behind the device's name."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from chipwise.cli.app import app
from chipwise.cli.completion import sized
from chipwise.errors import InputError
from chipwise.hardware.datasheet import load


@pytest.mark.parametrize(
    ("device", "memory", "typed"),
    [
        ("apple-m4-max", "64GB", "m4 max 64GB"),
        ("m4max", "64 gb", "MacBook Pro M4 Max 64GB"),
        ("raspberry-pi-5", "8GB", "pi5 8gb"),
        ("apple-m3-max:cpu", "64GB", "m3 max 64gb:cpu"),
        ("apple-m4-max", None, "m4 max"),
    ],
)
def test_the_option_is_the_typed_form(device: str, memory: str | None, typed: str) -> None:
    assert load(sized(device, memory)) == load(typed)


@pytest.mark.parametrize(
    ("device", "memory"), [("m4max", "much"), ("here", "8GB"), ("all", "8GB"), ("own.yaml", "8GB")]
)
def test_what_is_no_size_or_has_none_is_refused(device: str, memory: str) -> None:
    with pytest.raises(InputError, match="--memory"):
        sized(device, memory)


def test_a_card_sold_with_one_size_says_so() -> None:
    with pytest.raises(InputError, match="no other size is known"):
        load(sized("h100", "40GB"))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("estimate sdxl --device rtx-4090 --gpu-layers 3", "--gpu-layers only applies to language models"),
        ("explain sdxl --device rtx-4090 --memory 16GB", "--memory only applies to language models"),
        ("estimate qwen3-0.6b --device rtx-4070 --gpu-layers many", "must be a number of layers or 'auto'"),
        ("models --host core-i7-13700k", "--host needs --device"),
    ],
)
def test_no_option_is_ignored(typed: str, said: str) -> None:
    found = CliRunner().invoke(app, typed.split())
    assert found.exit_code != 0
    assert said in " ".join(f"{found.output} {found.exception}".split())
