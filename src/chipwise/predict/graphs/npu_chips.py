"""Chips with a Hexagon NPU: the devices in which each chip is sold, its NPU generation, and its product class."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip, described by its NPU generation (Hexagon architecture version) and product class."""

    name: str
    npu: str
    market: str


# Qualcomm AI Hub's list of devices and Qualcomm's product briefs.
CHIPS: Mapping[str, Chip] = {
    "samsung galaxy s21": Chip("snapdragon-888", "v68", "phone"),
    "samsung galaxy s22": Chip("snapdragon-8-gen-1", "v69", "phone"),
    "snapdragon xr2 gen 2": Chip("snapdragon-8-gen-1", "v69", "phone"),
    "samsung galaxy tab s8": Chip("snapdragon-8-gen-1", "v69", "phone"),
    "xiaomi 12": Chip("snapdragon-8-gen-1", "v69", "phone"),
    "snapdragon 8 gen 1": Chip("snapdragon-8-gen-1", "v69", "phone"),
    "samsung galaxy s23": Chip("snapdragon-8-gen-2", "v73", "phone"),
    "snapdragon 8 gen 2": Chip("snapdragon-8-gen-2", "v73", "phone"),
    "snapdragon 8+ gen 1": Chip("snapdragon-8-gen-1", "v69", "phone"),
    "snapdragon-8-plus-gen-1": Chip("snapdragon-8-gen-1", "v69", "phone"),
    "snapdragon-x-plus": Chip("snapdragon-x-elite", "v73", "laptop"),
    "qcs8550": Chip("snapdragon-8-gen-2", "v73", "phone"),
    "qcs8450": Chip("snapdragon-8-gen-1", "v69", "phone"),
    "samsung galaxy s24": Chip("snapdragon-8-gen-3", "v75", "phone"),
    "snapdragon 8 gen 3": Chip("snapdragon-8-gen-3", "v75", "phone"),
    "samsung galaxy s25": Chip("snapdragon-8-elite", "v79", "phone"),
    "snapdragon 8 elite qrd": Chip("snapdragon-8-elite", "v79", "phone"),
    "dragonwing q-8750": Chip("snapdragon-8-elite", "v79", "phone"),
    "samsung galaxy s26": Chip("snapdragon-8-elite-gen-5", "v81", "phone"),
    "snapdragon 8 elite gen 5": Chip("snapdragon-8-elite-gen-5", "v81", "phone"),
    "snapdragon 8 elite gen 6": Chip("snapdragon-8-elite-gen-6", "v81", "phone"),
    "snapdragon 8 elite extreme gen 6": Chip("snapdragon-8-elite-extreme-gen-6", "v81", "phone"),
    "snapdragon x elite": Chip("snapdragon-x-elite", "v73", "laptop"),
    "snapdragon x plus": Chip("snapdragon-x-elite", "v73", "laptop"),
    "dragonwing iq-x7181": Chip("snapdragon-x-elite", "v73", "laptop"),
    "dragonwing iq-x5121": Chip("snapdragon-x-elite", "v73", "laptop"),
    "snapdragon x2 elite": Chip("snapdragon-x2-elite", "v81", "laptop"),
    "dragonwing iq-9075": Chip("qcs9075", "v73 car", "car"),
    "qcs9075": Chip("qcs9075", "v73 car", "car"),
    "sa8775p": Chip("sa8775p", "v73 car", "car"),
    "sa8255p": Chip("sa8775p", "v73 car", "car"),
    "sa8650p": Chip("sa8775p", "v73 car", "car"),
    "sa8295p": Chip("sa8295p", "v69", "car"),
    "sa7255p": Chip("sa7255p", "v73 small", "small"),
    "arduino ventuno q": Chip("qcs8275", "v73 car", "car"),
    "qcs8275": Chip("qcs8275", "v73 car", "car"),
    "dragonwing iq-8275": Chip("qcs8275", "v73 car", "car"),
    "snapdragon 7 gen 4": Chip("snapdragon-7-gen-4", "v73 small", "small"),
    "dragonwing q-7790": Chip("snapdragon-7-gen-4", "v73 small", "small"),
    "qcs6690": Chip("dragonwing-q-6690", "v73 smallest", "small"),
    "dragonwing q-6690": Chip("dragonwing-q-6690", "v73 smallest", "small"),
    "dragonwing rb3 gen 2": Chip("qcs6490", "v73 small", "small"),
    "qcs6490": Chip("qcs6490", "v73 small", "small"),
}


def chip_named(device: str) -> Chip:
    """The chip of a device. ``device`` is a name from AI Hub's list or the name of a data sheet.

    An unknown name gives a chip of unknown generation and class.
    """
    low = device.lower()
    found = [known for known in CHIPS if known in low]
    if found:
        return CHIPS[max(found, key=len)]
    sheets = {_squeezed(chip.name): chip for chip in CHIPS.values()}
    return sheets.get(_squeezed(low.partition(":")[0])) or Chip(low, "unknown", "unknown")


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name)
