"""Errors: one tree, exit codes, and messages that say where and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import chipwise
from chipwise import errors
from chipwise.errors import ChipwiseError, InputError, MissingExtra, SpecError, UnknownName, nearest, short


def test_the_tree_is_the_one_drawn_at_the_head_of_the_file() -> None:
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or ""))
    classes = {name: item for name, item in vars(errors).items() if isinstance(item, type)}
    assert drawn == classes.keys() - {"ChipwiseError"} - {"Iterable", "Sequence"}
    assert all(issubclass(classes[name], ChipwiseError) for name in drawn)


def test_bad_input_exits_with_2_and_all_else_with_1() -> None:
    assert InputError.exit_code == SpecError.exit_code == UnknownName.exit_code == 2
    assert errors.OutputError.exit_code == errors.StudyError.exit_code == 2  # a path that the user named
    assert ChipwiseError.exit_code == errors.DiskFull.exit_code == errors.Unsupported.exit_code == 1


def test_a_spec_error_grows_its_path_from_inside_out() -> None:
    error = SpecError("must be 1", field="heads").inside(field="layers[2]").inside(file="m.yaml", field="space")
    assert str(error) == "m.yaml: space.layers[2].heads: must be 1"
    assert (error.file, error.field) == ("m.yaml", "space.layers[2].heads")
    assert str(error.inside(file="outer.yaml")).startswith("m.yaml")


def test_nearest_names_are_offered() -> None:
    assert nearest("latncy", ["latency", "memory"]) == "did you mean 'latency'?"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
    assert nearest("zzz", []) == "none are known"
    many = [f"name{i}" for i in range(30)]
    assert nearest("q", many) == "none of 30 known names is similar"
    assert nearest("q", many, listed_by="chipwise models") == (
        "none of 30 known names is similar; list them with: chipwise models"
    )
    assert str(UnknownName("device", "h1oo", ["h100", "a100"])).startswith("unknown device 'h1oo'; did you mean 'h100'")


def test_names_that_hold_what_was_typed_are_offered_first() -> None:
    names = ["SigLIP-base", "siglip-large", "clip-vit", "gpt2"]
    assert nearest("siglip", names) == "did you mean 'SigLIP-base' or 'siglip-large'?"
    assert nearest("SIGLIP-L", names) == "did you mean 'siglip-large'?"
    many = [f"whisper-{i:02d}" for i in range(12)]
    found = nearest("whisper", many)
    assert found.count("'whisper-") == 5
    assert found.endswith(" or 'whisper-04'? (and 7 more)")
    assert nearest("gp", ["gpt2", "clip-vit"]) == "did you mean 'gpt2'?"  # too short to look inside of names, yet close


def test_a_missing_extra_says_what_to_install() -> None:
    assert "pip install 'chipwise[search]'" in str(MissingExtra("onnx", "search"))


def test_every_error_is_a_chipwise_error() -> None:
    with pytest.raises(ChipwiseError):
        raise SpecError("x")


def test_long_values_are_cut() -> None:
    """File names up to 200 characters stay whole; a value of 100,000 does not fill the screen."""
    assert str(InputError("x" * 150)) == "x" * 150
    assert str(InputError(f"a {'x' * 100_000} is wrong")) == f"a {'x' * 60}… is wrong"
    assert len(str(SpecError("no " * 100_000, file="f.yaml"))) < 2100
    assert short("x" * 100).endswith("…")
    assert short(10**5000) == "a whole number of 16610 bits"


def test_every_error_of_the_package_can_be_caught_by_its_public_name() -> None:
    """`chipwise.errors` lists every class below ChipwiseError, wherever it is defined."""
    bases: dict[str, str] = {}
    for path in Path(errors.__file__).parents[1].rglob("*.py"):
        bases |= dict(re.findall(r"^class (\w+)\((\w+)[,)]", path.read_text(encoding="utf-8"), re.MULTILINE))

    def is_error(name: str) -> bool:
        return name == "ChipwiseError" or (name in bases and is_error(bases[name]))

    found = {name for name in bases if is_error(name)}
    assert set(chipwise.errors.__all__) == found
    assert all(issubclass(getattr(chipwise.errors, name), errors.ChipwiseError) for name in found)
