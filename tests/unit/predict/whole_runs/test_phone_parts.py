"""Parts of models on phones: what chips are in devices, what parts have in common, measured runs."""

from __future__ import annotations

import pytest

from chipwise.predict.graphs.npu_chips import chip_named
from chipwise.predict.whole_runs.phone_parts import PartRun, constants, part_law
from chipwise.predict.whole_runs.sums import value_of


def run(**changes: object) -> PartRun:
    fields = {"model": "vit", "component": "VIT", "precision": "float", "device": "Samsung Galaxy S25"}
    return PartRun(**{**fields, "runtime": "qnn_dlc", "layers": 384.0, **changes})  # type: ignore[arg-type]


def seconds(**changes: object) -> float:
    return float(value_of(part_law(run(**changes)), constants().terms()))


def test_devices_are_known_by_their_chips() -> None:
    assert chip_named("Samsung Galaxy S25").name == chip_named("Dragonwing Q-8750").name == "snapdragon-8-elite"
    assert chip_named("Snapdragon 8 Elite Gen 5 QRD").npu == "v81"  # the longest name that fits
    assert chip_named("A phone of tomorrow").npu == "unknown"


@pytest.mark.parametrize(
    ("changes", "measured_s"),
    [  # qai-hub-models 0.65.0
        ({"device": "Dragonwing IQ-9075 EVK"}, 14.877e-3),
        ({"device": "Dragonwing IQ-9075 EVK", "precision": "w8a16", "layers": 385.0}, 7.572e-3),
        ({"model": "openai_clip", "component": "OpenAI-Clip", "layers": 846.0}, 16.632e-3),
        (
            {"model": "openai_clip", "component": "OpenAI-Clip", "layers": 846.0, "device": "Samsung Galaxy S26"},
            13.197e-3,
        ),
    ],
)
def test_measured_parts_take_about_what_was_measured(changes: dict[str, object], measured_s: float) -> None:
    assert seconds(**changes) == pytest.approx(measured_s, rel=0.08)


def test_a_newer_phone_is_faster() -> None:
    phones = [f"Samsung Galaxy S{generation}" for generation in (22, 24, 25, 26)]
    found = [seconds(device=phone) for phone in phones]
    assert found == sorted(found, reverse=True)


def test_translations_between_languages_share_an_architecture() -> None:
    assert run(model="opus_mt_en_fi").architecture == run(model="opus_mt_en_de").architecture
    known, new = (seconds(model=f"opus_mt_en_{to}", component="encoder", layers=400.0) for to in ("de", "fi"))
    assert new == pytest.approx(known, rel=0.1)


def test_more_work_takes_longer_where_the_part_was_never_run() -> None:
    small, large = (run(model="whisper_" + size, component="encoder").base_s for size in ("tiny", "medium"))
    assert 10 < large / small < 40


@pytest.mark.parametrize(
    ("precision", "bits"), [("float", "float"), ("w8a16", "a16"), ("w4a16", "a16"), ("w8a8", "a8"), ("mixed", "float")]
)
def test_what_precisions_have_in_common(precision: str, bits: str) -> None:
    assert run(precision=precision).bits == bits
