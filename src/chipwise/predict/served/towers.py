"""Lowers the image or audio input of a decoder: the pass of an encoder (tower), and the projector to tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.question.question import question_of
from chipwise.model.ops.pool import PoolOp
from chipwise.predict.served.formats import Formats
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.setting import PlacedOp, Setting, Step

IMAGE, SOUND = "image", "sound"


def place_of(tower: ArchSpec) -> str:
    """Label of a tower's kernels in breakdowns."""
    return tower.reads


def of_tower(part: PlacedOp) -> bool:
    """Whether an operator belongs to a tower."""
    return part.place.startswith((f"{IMAGE}.", f"{SOUND}."))


def tower_setting(tower: ArchSpec, setting: Setting) -> Setting:
    """The setting of a tower, in the activations' format and without the layers that the model does not use.

    A tower is split over tensor-parallel devices if its heads and widths divide evenly; otherwise each device holds the
    whole tower.
    """
    projector = projector_of(tower)
    read = tower.layers[: len(tower.layers) - projector.unused_layers]
    arch = replace(tower, layers=read, final_norm=tower.final_norm and not projector.unused_layers)
    wide = setting.formats.activations
    formats = Formats(weights=wide, experts=wide, activations=wide, cache=wide)
    try:
        return Setting(arch=arch, plan=Plan(tp=setting.plan.tp), formats=formats, runtime=setting.runtime)
    except SpecError:
        return Setting(arch=arch, plan=Plan(), formats=formats, runtime=setting.runtime)


def projector_of(arch: ArchSpec) -> Projector:
    """The projector of a tower, or of a model that answers questions about images."""
    asked = question_of(arch.stem)
    return arch.head_as(Projector) if asked is None else asked.projector


def project(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators of the projector after a tower's pass: pooling, joining, a norm, and matrices."""
    arch, projector = setting.arch, projector_of(setting.arch)
    stem, d = arch.stem, arch.d_model
    rows = step.batch * (step.query_tokens - stem.prefix_tokens)
    if projector.pool > 1:
        several = projector.pool**stem.axes
        rows = np.maximum(rows // several, 1)
        yield PlacedOp(
            place="pool", op=PoolOp(batch=rows, positions=several, width=d, activations=setting.formats.activations)
        )
    joined = np.maximum(rows // projector.join**stem.axes, 1)
    for name, count in (("", 1), ("deeper.", projector.deeper)):
        if not count:
            continue
        over_joined = projector.norm_joined or bool(name)
        if projector.norm != "none":
            width = projector.joined_width(d, stem.axes) if over_joined else d
            over = joined if over_joined else rows
            norm = setting.norm_of(f"{name}norm", over, width, projector.norm, bias=projector.norm == "layernorm")
            yield replace(norm, count=count, owned=count)
        if projector.join > 1:
            part = setting.elementwise(f"{name}join", "transpose", rows * d)
            yield replace(part, count=count)
        shapes = projector.shapes(d, stem.axes)
        for i, (into, out) in enumerate(shapes):
            part = setting.plain_matmul(f"{name}{i}", joined, into, out, bias=projector.bias)
            yield replace(part, count=count, owned=count)
            if i + 1 < len(shapes):
                yield replace(setting.elementwise(f"{name}{i}.act", "gelu", joined * out), count=count)
