"""Names as people type them: Ollama's tags, addresses of repositories, titles of threads; and what must be refused.

The tables in ``data/`` were written from the lists that `chipwise models` and `chipwise devices` print, before the code
that reads names was looked at.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import chipwise
from chipwise.errors import AmbiguousName, UnknownName
from chipwise.hardware import datasheet
from chipwise.model.published import families
from chipwise.model.published.quantised import default_weights
from chipwise.predict.served.table import estimate_rows
from chipwise.predict.whole_runs import diffusion

DATA = Path(__file__).parent / "data"
SMALL = {"device": "raspberry-pi-5", "isl": "64", "osl": "16", "batch": "1"}


def table(file: str) -> list[tuple[str, str]]:
    """Typed names and their right answers."""
    lines = (DATA / file).read_text(encoding="utf-8").splitlines()
    return [(typed, right) for typed, arrow, right in (line.partition(" => ") for line in lines) if arrow]


def refused(section: str) -> list[str]:
    """Names that must be refused."""
    _, _, rest = (DATA / "refused_names.txt").read_text(encoding="utf-8").partition(f"[{section}]\n")
    return rest.partition("\n[")[0].splitlines()


def test_the_tables_hold_what_was_promised() -> None:
    assert len(table("typed_models.txt")) + len(table("typed_devices.txt")) >= 200
    assert len(refused("models")) + len(refused("devices")) >= 100


@pytest.mark.parametrize(("typed", "right"), table("typed_models.txt"))
def test_a_typed_model_is_the_one_that_was_meant(typed: str, right: str) -> None:
    if right.startswith("?"):
        with pytest.raises(UnknownName) as error:
            families.id_of(typed)
        assert all(each.strip() in str(error.value) for each in right[1:].split(","))
    else:
        assert (diffusion.known_name(typed) or families.id_of(typed)) in [each.strip() for each in right.split("|")]


@pytest.mark.parametrize(("typed", "right"), table("typed_devices.txt"))
def test_a_typed_device_is_the_one_that_was_meant(typed: str, right: str) -> None:
    if right.startswith("?"):
        with pytest.raises(UnknownName) as error:
            datasheet.load(typed)
        assert all(each.strip() in str(error.value) for each in right[1:].split(","))
        return
    name, _, memory = right.partition(" @ ")
    found, own = datasheet.load(typed), datasheet.load(name)
    assert found.name == name
    stated = float(memory.removesuffix(" GB")) * 1e9 if memory else own.mem_capacity_bytes
    assert found.mem_capacity_bytes == stated


@pytest.mark.parametrize("name", refused("models"))
def test_a_model_that_is_not_known_is_refused(name: str) -> None:
    assert diffusion.known_name(name) is None
    with pytest.raises(UnknownName, match=r"did you mean|may be|is similar"):
        families.id_of(name)


@pytest.mark.parametrize("name", refused("devices"))
def test_a_device_that_is_not_known_is_refused(name: str) -> None:
    with pytest.raises(UnknownName, match=r"did you mean|may be|is similar|has .* GB"):
        datasheet.load(name)


def test_every_name_that_is_listed_is_found() -> None:
    assert [families.id_of(name) for name in families.names()] == families.names()
    assert [datasheet.load(name).name for name in datasheet.names()] == datasheet.names()


@pytest.mark.parametrize("name", ["gemma-5n-e4b", "LiquidAI/LFM2.5-230M", "llama-3.1 9b"])
def test_all_commands_refuse_what_one_refuses(name: str) -> None:
    """explain, compare, plan and tables refuse the same inputs as estimate, with the same message."""
    said = []
    for ask in (
        lambda: chipwise.estimate(name, device="l4"),
        lambda: chipwise.explain(name, device="l4"),
        lambda: chipwise.compare([name, "gpt2"], devices=["l4"]),
        lambda: chipwise.plan(name, devices=["l4"], rate="1/s"),
    ):
        with pytest.raises(UnknownName) as error:
            ask()
        said.append(str(error.value))
    (row,) = estimate_rows([{**SMALL, "model": name}])
    assert {*said, str(row["error"])} == {said[0]}


def test_an_answer_says_what_was_taken_where_the_name_leaves_it_open() -> None:
    found = chipwise.estimate("gemma3", device="m4-max 64gb")
    assert "gemma3 is ambiguous: taken as google/gemma-3-4b-pt" in found.notes
    assert "m4-max 64gb: apple-m4-max with 64 GB of memory instead of 128 GB" in found.notes
    assert not any("gemma3:4b" in note for note in chipwise.estimate("gemma3:4b", device="m4-max").notes)
    (row,) = estimate_rows([{**SMALL, "model": "gemma3"}])
    assert "taken as google/gemma-3-4b-pt" in str(row["provenance"])


def test_memory_that_was_typed_is_the_memory_that_counts() -> None:
    """Llama-3.1-70B in 8 bits needs 75 GB: it fits into the 128 GB of the sheet, and not into 64 GB."""
    asked = {"weights": "q8_0", "runtime": "llama.cpp"}
    assert chipwise.estimate("llama3.1:70b", device="m4 max", **asked)
    with pytest.raises(chipwise.ChipwiseError, match="64 GB"):
        chipwise.estimate("llama3.1:70b", device="MacBook Pro M4 Max 64GB", **asked)


def test_sizes_of_memory_of_one_chip_are_two_devices() -> None:
    found = chipwise.compare(["gpt2", "smollm2:135m"], devices=["m4 max 64gb", "m4 max 48gb"])
    assert found.devices == ("apple-m4-max 64 GB", "apple-m4-max 48 GB")


@pytest.mark.parametrize(
    ("typed", "weights"),
    [
        ("llama3.1:8b-instruct-q4_K_M", "q4_k_m"),
        ("hf.co/unsloth/gemma-3-4b-it-GGUF:Q8_0", "q8_0"),
        ("Qwen/Qwen3-8B-FP8", "fp8_block"),
        ("llama3.1:8b", None),
    ],
)
def test_the_format_in_a_tag_is_the_weights_format(typed: str, weights: str | None) -> None:
    assert default_weights(typed) == weights


def test_a_name_for_several_lists_all_of_them() -> None:
    with pytest.raises(AmbiguousName, match="DeepSeek-R1-Distill-Llama-8B' or 'Qwen/Qwen3-8B'"):
        families.id_of("deepseek-r1:8b")
