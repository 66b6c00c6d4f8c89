"""What users see stays: answers, what is made of designs, names, and what stored files say.

Where something is meant to change, ``python tests/pins/make.py`` rewrites the pins; the commit says what moved and why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the search extra")
pytest.importorskip("onnx", reason="needs the search extra")
pytest.importorskip("safetensors", reason="needs the search extra")
pytest.importorskip("gguf", reason="needs the search extra")

import answers
import designs
import pinned
import samples
import surface

OUTPUT = 1e-4  # of a value of a module's output: processors sum in another order
LOSS = 1e-3  # of a loss after some steps of training, relative, for the same reason


@pytest.mark.parametrize("name", answers.QUESTIONS)
def test_answers_stay(name: str) -> None:
    pinned.check(pinned.read("answers")[name], answers.answer(name))


@pytest.mark.parametrize("kind", designs.PARTS)
def test_what_is_made_of_designs_stays(kind: str) -> None:
    pins = pinned.read("designs")
    then, now = pins[kind], designs.found(kind)
    if pins["versions"] != designs.versions():  # another onnx may write the same graph as other bytes
        then, now = ({name: _without_files(item) for name, item in each.items()} for each in (then, now))
    for name in then:
        if "outputs" in then[name]:
            old, new = then[name].pop("outputs"), now[name].pop("outputs")
            assert new[0] == old[0]
            assert [new[1], *new[2]] == pytest.approx([old[1], *old[2]], abs=OUTPUT)
            first = then[name].pop("first")
            assert now[name].pop("first") == (None if first is None else pytest.approx(first, rel=OUTPUT))
    pinned.check(then, now)


def _without_files(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    return {name: value[:1] if name.startswith("onnx") else value for name, value in item.items()}


@pytest.mark.parametrize("part", surface.PARTS)
def test_names_that_people_write_stay(part: str) -> None:
    pinned.check(pinned.read("surface")[part], surface.PARTS[part]())


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_what_was_stored_opens_and_says_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path))
    tolerance = LOSS if name in ("job", "training") else pinned.TOLERANCE
    pinned.check(pinned.read("samples")[name], samples.SAMPLES[name](tmp_path), tolerance=tolerance)
