"""Reads an ArchSpec from a Hugging Face ``config.json`` or the name of a known model.

The architecture has exactly as many parameters as the model. If a setting changes logits but an ArchSpec cannot
represent it (such as rotary scaling), it becomes a note; ``deploy.hf.load_pretrained`` then refuses to load weights.
Multimodal models are read completely if ``multimodal.py`` knows the family; of other multimodal models, only the
language model is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from chipwise.core.fields import build, describe
from chipwise.core.files import read_json
from chipwise.errors import SpecError, nearest, short
from chipwise.model.arch import io
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.published import (
    alike,
    dense,
    encoders,
    experts,
    families,
    gemma,
    gpt,
    hybrid,
    images,
    multimodal,
    sound,
)
from chipwise.model.published.fields import COSTLESS, Fields

OWN_TYPE = "chipwise"  # model_type of folders with chipwise's modelling file; their config holds the ArchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """An architecture that was read from a config, with notes on the config.

    ``notes`` name settings that the ArchSpec cannot represent: the number of parameters and the costs are right, but
    logits would be wrong. ``unread`` are fields that chipwise does not know, so their effect on costs is unknown.
    """

    arch: ArchSpec
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def remark(self) -> str | None:
        """A note on fields that were not read and may affect costs; None if there are no such fields."""
        rest = [name for name in self.unread if name.rpartition(".")[2] not in COSTLESS]
        return f"config.json fields not read: {', '.join(short(name, quoted=False) for name in rest)}" if rest else None


def resolve(model: str | Path) -> ArchSpec:
    """The architecture of ``model``: a config.json, its folder, a spec file, or a known name such as ``gpt2``.

    Raises:
        SpecError: The file cannot be read as a model.
        UnknownName: ``model`` is neither an existing path nor a known name.
    """
    return read_model(model).arch


def read_model(model: str | Path) -> Reading:
    """The architecture of ``model``, with notes on its config if it has one.

    ``FOLDER as llama`` reads a ``config.json`` of unknown ``model_type`` as if it were Llama's.

    Raises:
        SpecError: The file cannot be read as a model, the family after ``as`` is unknown, or ``as`` is
            used although the config's type is known.
        UnknownName: ``model`` is neither an existing path nor a known name.
    """
    if not isinstance(model, str | Path):
        raise SpecError(f"must be a name or a path, not {describe(model)}", field="model")
    place, like = alike.split(model)
    path = Path(place)
    if os.path.isdir(path):  # pathlib raises an error for some strings that cannot be file names
        path = path / "config.json"
        if not path.exists():
            raise SpecError("this folder holds no config.json", file=str(path.parent))
    if not os.path.exists(path) and path.suffix not in {".json", ".yaml", ".yml"}:
        return Reading(arch=from_config(families.config_of(str(model)), name=str(model)))
    if path.suffix != ".json":
        if like is not None:
            raise SpecError(f"works only with a config.json, not with {path}", field="like")
        return Reading(arch=io.load(path))
    data = read_json(path)
    if not isinstance(data, dict):
        raise SpecError("a model must be a mapping of fields", file=str(path))
    if data.keys() & {"architectures", "hidden_size", "num_hidden_layers"} and "model_type" not in data:
        raise SpecError(
            "this field is missing; it names the family of a Hugging Face config", file=str(path), field="model_type"
        )
    if "model_type" in data:
        name = Path(os.path.realpath(path)).parent.name if path.name == "config.json" else path.stem
        return read_config(data if like is None else as_family(data, like), name=name, file=str(path))
    return Reading(arch=io.from_data(data, file=str(path)))


def as_family(config: Mapping[str, object], like: str) -> dict[str, object]:
    """A copy of ``config`` with the model type ``like``, which is set in ``text_config`` if the config has one.

    Raises:
        SpecError: ``like`` is not a family, or the config's own type is known.
    """
    if like not in READERS:
        raise SpecError(f"no model family has this name; {nearest(like, READERS)}", field="like")
    kind, inner = config.get("model_type"), config.get("text_config")
    own = inner.get("model_type", kind) if isinstance(inner, Mapping) else kind
    if multimodal.sees(config) or kind in READERS or own in READERS:
        raise SpecError(f"works only with an unknown model_type; {short(kind)} is known", field="like")
    if not isinstance(inner, Mapping):
        return {**config, "model_type": like}
    return {**config, "text_config": {**inner, "model_type": like}}


def from_config(config: Mapping[str, object], *, name: str | None = None, file: str | None = None) -> ArchSpec:
    """The ArchSpec that ``config`` describes. See :func:`read_config`."""
    return read_config(config, name=name, file=file).arch


def read_config(config: Mapping[str, object], *, name: str | None = None, file: str | None = None) -> Reading:
    """``config`` (the contents of ``config.json``) as an ArchSpec, with notes on settings that it cannot represent.

    Raises:
        SpecError: The ``model_type`` is not supported, or a field is missing, of the wrong type, or describes layers
            that an ArchSpec cannot represent.
    """
    kind, name = config.get("model_type"), name or str(config.get("_name_or_path") or "") or None
    if multimodal.sees(config):
        reading = read_config(multimodal.text_part(config), name=name, file=file)
        tower = multimodal.tower_of(config, reading.arch)
        notes = ("vision_config: chipwise does not read the weights of towers", *reading.notes)
        return replace(reading, arch=replace(reading.arch, towers=(tower,)), notes=notes)
    inner = config.get("text_config")
    if str(kind) not in READERS and isinstance(inner, Mapping):
        kept = {"model_type": kind, "tie_word_embeddings": config.get("tie_word_embeddings")}
        reading = read_config({**kept, **inner}, name=name, file=file)
        beside = Fields({**config, "text_config": None}).unread()
        beside += [f"text_config.{name}" for name in reading.unread]
        notes = ("text_config: only the part of the model that reads text is used", *reading.notes)
        return replace(reading, notes=notes, unread=tuple(beside))
    fields = Fields(config)
    try:
        if kind == OWN_TYPE:
            return Reading(arch=io.from_data(fields.take("arch", dict)))
        if not isinstance(kind, str) or kind not in READERS:
            known = ", ".join(sorted([*READERS, OWN_TYPE]))
            raise SpecError(
                f"models of type {short(kind)} are not supported; known: {known}; if the config is similar to "
                "one of these types, name that type, such as --like llama",
                field="model_type",
            )
        fields.check_names()
        values = READERS[kind](fields)
        arch = build(ArchSpec, {"name": name or kind, **values})
        fields.check_layer_types(len(arch.layers))
    except SpecError as error:
        raise fields.in_config(error).inside(file=file) from None
    unread = fields.unread()
    notes = (*fields.notes, *(f"{short(name, quoted=False)}: not known to chipwise" for name in unread))
    return Reading(arch=arch, notes=notes, unread=tuple(unread))


READERS: dict[str, Callable[[Fields], dict[str, object]]] = {
    "beit": images.read_beit,
    "bert": encoders.read_bert,
    "chatglm": dense.read_chatglm,
    "clip_vision_model": images.read_clip,
    "conformer_ctc": sound.read_conformer_ctc,
    "deepseek_v2": experts.read_deepseek,
    "deepseek_v3": experts.read_deepseek,
    "deit": images.read_deit,
    "dinov2": images.read_dinov2,
    "dinov2_with_registers": images.read_dinov2,
    "eva02": images.read_eva02,
    "falcon": gpt.read_falcon,
    "gemma": gemma.read_gemma,
    "gemma2": gemma.read_gemma2,
    "gemma3_text": gemma.read_gemma3,
    "gemma4_text": gemma.read_gemma4,
    "gemma4_unified_text": gemma.read_gemma4,
    "glm": dense.read_glm,
    "glm4": dense.read_glm4,
    "glm4_moe": experts.read_glm4_moe,
    "glm4_moe_lite": experts.read_deepseek,
    "gpt2": gpt.read_gpt2,
    "gpt_neox": gpt.read_gpt_neox,
    "gpt_oss": experts.read_gpt_oss,
    "granite": dense.read_llama,
    "granitemoe": experts.read_granitemoe,
    "hubert": sound.read_wav2vec2,
    "hunyuan_v1_moe": experts.read_hunyuan_moe,
    "kimi_k2": experts.read_deepseek,
    "lfm2": hybrid.read_lfm2,
    "lfm2_moe": hybrid.read_lfm2_moe,
    "llama": dense.read_llama,
    "llama4_text": experts.read_llama4,
    "minimax_m2": experts.read_minimax_m2,
    "ministral3": dense.read_ministral3,
    "mistral": dense.read_mistral,
    "mixtral": experts.read_mixtral,
    "modernbert": encoders.read_modernbert,
    "moonshine": sound.read_moonshine,
    "nemotron_h": hybrid.read_nemotron_h,
    "olmo2": dense.read_olmo2,
    "opt": gpt.read_opt,
    "parakeet_ctc": sound.read_parakeet,
    "phi": gpt.read_phi,
    "phi3": dense.read_phi3,
    "qwen2": dense.read_qwen2,
    "qwen2_moe": experts.read_qwen2_moe,
    "qwen3": dense.read_qwen3,
    "qwen3_5_moe_text": hybrid.read_qwen3_next,
    "qwen3_5_text": hybrid.read_qwen3_next,
    "qwen3_moe": experts.read_qwen3_moe,
    "qwen3_next": hybrid.read_qwen3_next,
    "qwen3_vl_moe_text": experts.read_qwen3_moe,
    "qwen3_vl_text": dense.read_qwen3,
    "roberta": encoders.read_bert,
    "siglip_vision_model": images.read_siglip,
    "smollm3": dense.read_smollm3,
    "swin": images.read_swin,
    "swinv2": images.read_swinv2,
    "t5": encoders.read_t5,
    "vit": images.read_vit,
    "wav2vec2": sound.read_wav2vec2,
    "wav2vec2-conformer": sound.read_wav2vec2_conformer,
    "whisper": sound.read_whisper,
    "xlm-roberta": encoders.read_bert,
}
