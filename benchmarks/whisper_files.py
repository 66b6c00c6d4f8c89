"""Whisper out of a CTranslate2 folder, its encoder and decoder as ONNX files, and transcripts by these files.

The encoder's file ends with the keys and values of the sound for every layer of the decoder, so that they are computed
once. The decoder's file takes them, and the keys and values of the tokens before. T: new tokens.

``encoder_score`` and ``decoder_score`` are for ``chipwise quantize --metric``: exp(-d), where d is the mean divergence
of the next token's distribution from the original's in nats, so that a loss of 1 % is 0.01 nats.
"""

from __future__ import annotations

import functools
import json
import math
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from chipwise.deploy.runtimes.onnx_session import session_options

START, PLAIN, END = 50257, 50362, 50256  # <|startoftranscript|>, <|notimestamps|>, <|endoftext|> of English models
MOST_TOKENS = 100
Arrays = Mapping[str, Sequence[np.ndarray]]
TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)  # by their number in the file
PARTS = {  # of a layer: names in Hugging Face's model, stacked in this order
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
    "ffn/layer_norm": ("final_layer_norm",),
    "layer_norm": ("layer_norm",),
    "conv1": ("conv1",),
    "conv2": ("conv2",),
    "embeddings": ("embed_tokens",),
    "position_encodings": ("embed_positions",),
}
SIDES = ("encoder", "decoder")
ENDS = {"gamma": "weight", "beta": "bias", "encodings": "weight"}


def ctranslate2(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a ``model.bin`` of version 6, by name.

    After version, name and revision of the model comes a count, then for each array its name (length, bytes, a zero),
    rank, axes, number of its type, bytes, and values. Source: CTranslate2's ``python/ctranslate2/specs/model_spec.py``.
    """
    content, place = path.read_bytes(), 0

    def number(kind: str) -> int:
        nonlocal place
        (found,) = struct.unpack_from(f"<{kind}", content, place)
        place += struct.calcsize(kind)
        return int(found)

    def text() -> str:
        nonlocal place
        length = number("H")
        place += length
        return content[place - length : place - 1].decode()

    version, kind, _ = number("I"), text(), number("I")
    if (version, kind) != (6, "WhisperSpec"):
        raise SystemExit(f"{path}: holds a {kind} of version {version}, not a WhisperSpec of version 6")
    found = {}
    for _ in range(number("I")):
        name, shape = text(), [number("I") for _ in range(number("B"))]
        dtype, size = TYPES[number("B")], number("I")
        found[name] = np.frombuffer(content, dtype, math.prod(shape), place).reshape(shape)
        place += size
    return found


def hugging_face(source: Path, out: Path) -> None:
    """Writes a CTranslate2 folder as a Hugging Face folder, in half precision as it is; every array must fit."""
    import torch
    from transformers import PreTrainedTokenizerFast, WhisperConfig, WhisperFeatureExtractor
    from transformers import WhisperForConditionalGeneration as Whisper

    held, settings = ctranslate2(source / "model.bin"), json.loads((source / "config.json").read_text())
    vocabulary, width = held["decoder/embeddings/weight"].shape
    state = {}
    for name, array in held.items():
        if not array.ndim or array.dtype != np.float16:
            continue  # settings such as the number of heads
        side, *part, end = name.split("/")
        layer = f"layers.{part.pop(0).removeprefix('layer_')}." if part[0].startswith("layer_") and part[1:] else ""
        parts = PARTS["/".join(part)]
        for wanted, each in zip(parts, np.split(array, len(parts)), strict=True):
            state[f"model.{side}.{layer}{wanted}.{ENDS.get(end, end)}"] = torch.tensor(each)
    layers = {side: sum(name.startswith(f"model.{side}") and "fc1.w" in name for name in state) for side in SIDES}
    config = WhisperConfig(
        vocab_size=vocabulary,
        d_model=width,
        encoder_layers=layers["encoder"],
        decoder_layers=layers["decoder"],
        encoder_attention_heads=int(held["encoder/num_heads"]),
        decoder_attention_heads=int(held["decoder/num_heads"]),
        encoder_ffn_dim=len(held["encoder/layer_0/ffn/linear_0/bias"]),
        decoder_ffn_dim=len(held["decoder/layer_0/ffn/linear_0/bias"]),
        num_mel_bins=held["encoder/conv1/weight"].shape[1],
        decoder_start_token_id=START,
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
    )
    model = Whisper(config).half()
    missing, unknown = model.load_state_dict(state, strict=False)
    zero = [name for name in unknown if name.endswith("k_proj.bias") and not state[name].any()]  # keys have no bias
    if set(missing) != {"proj_out.weight"} or set(unknown) != set(zero):
        raise SystemExit(f"{source}: lacks {missing}, and holds {sorted(set(unknown) - set(zero))} that nothing takes")
    model.tie_weights()
    model.save_pretrained(out)
    PreTrainedTokenizerFast(tokenizer_file=str(source / "tokenizer.json"), eos_token="<|endoftext|>").save_pretrained(
        out
    )
    WhisperFeatureExtractor(feature_size=config.num_mel_bins).save_pretrained(out)


def export(folder: Path, encoder_path: Path, decoder_path: Path) -> object:
    """Writes the two ONNX files of a Hugging Face folder in FP32, and returns the model."""
    import torch
    from torch import Tensor, nn
    from transformers import WhisperForConditionalGeneration as Whisper

    whisper = Whisper.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    layers, size = whisper.model.decoder.layers, whisper.config.d_model // whisper.config.decoder_attention_heads

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, size)).transpose(1, 2)  # (1, T, width) to (1, heads, T, size)

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | float = 0.0) -> Tensor:
        return (((q @ k.transpose(-1, -2)) + mask).softmax(-1) @ v).transpose(1, 2).flatten(2)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.layers = whisper.model.encoder, layers

        def forward(self, mel: Tensor) -> tuple[Tensor, ...]:
            states = self.encoder(mel).last_hidden_state
            both = [(each.encoder_attn.k_proj, each.encoder_attn.v_proj) for each in self.layers]
            return tuple(heads(project(states)) for pair in both for project in pair)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder, self.head = whisper.model.decoder, whisper.proj_out

        def forward(self, ids: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
            sound, before = given[: 2 * len(layers)], given[2 * len(layers) :]
            first, count = before[0].shape[2], ids.shape[1]
            places = torch.arange(first + count)
            mask = torch.where(places[None] > places[first:, None], -1e9, 0.0)
            x = self.decoder.embed_tokens(ids) + self.decoder.embed_positions.weight[first : first + count]
            caches: list[Tensor] = []
            for i, layer in enumerate(self.decoder.layers):
                own, other = layer.self_attn, layer.encoder_attn
                h = layer.self_attn_layer_norm(x)
                caches += [
                    torch.cat([cache, heads(project(h))], 2)
                    for cache, project in zip(before[2 * i : 2 * i + 2], (own.k_proj, own.v_proj), strict=True)
                ]
                x = x + own.out_proj(attend(heads(own.q_proj(h) * own.scaling), *caches[-2:], mask))
                h = layer.encoder_attn_layer_norm(x)
                x = x + other.out_proj(attend(heads(other.q_proj(h) * other.scaling), *sound[2 * i : 2 * i + 2]))
                x = x + layer.fc2(layer.activation_fn(layer.fc1(layer.final_layer_norm(x))))
            return self.head(self.decoder.layer_norm(x)), *caches

    pairs = [f"{name}_{i}" for i in range(len(layers)) for name in ("keys", "values")]
    mel = torch.randn(1, whisper.config.num_mel_bins, 2 * whisper.config.max_source_positions)
    write = functools.partial(torch.onnx.export, opset_version=17, dynamo=False)
    with torch.no_grad():
        encoder = Encoder()
        write(encoder, (mel,), str(encoder_path), input_names=["mel"], output_names=pairs)
        sound = encoder(mel)
        before = [torch.randn(1, each.shape[1], 5, size) for each in sound]
        names = ["ids", *pairs, *(f"past_{name}" for name in pairs)]
        axes = {"ids": {1: "tokens"}, "logits": {1: "tokens"}}
        axes |= {f"past_{name}": {2: "past"} for name in pairs} | {f"new_{name}": {2: "all"} for name in pairs}
        write(
            Decoder(),
            (torch.tensor([[START, PLAIN]]), *sound, *before),
            str(decoder_path),
            input_names=names,
            output_names=["logits", *(f"new_{name}" for name in pairs)],
            dynamic_axes=axes,
        )
    return whisper


def _opened(path: str) -> ort.InferenceSession:
    return ort.InferenceSession(path, session_options(1))


_opened_once = functools.cache(_opened)


class Transcriber:
    """Greedy transcripts by an encoder's and a decoder's file, with one thread."""

    def __init__(self, encoder: Path, decoder: Path, folder: Path) -> None:
        self.encoder, self.decoder = (
            ort.InferenceSession(str(path), session_options(1)) for path in (encoder, decoder)
        )
        settings = json.loads((folder / "generation_config.json").read_text())
        self._never, self._first = settings["suppress_tokens"], settings["begin_suppress_tokens"]
        self.names = [item.name for item in self.encoder.get_outputs()]

    def sound(self, mel: np.ndarray) -> dict[str, np.ndarray]:
        """Keys and values of a spectrogram (1, bands, frames)."""
        return dict(zip(self.names, self.encoder.run(None, {"mel": mel}), strict=True))

    def steps(self, sound: Mapping[str, np.ndarray]) -> tuple[list[int], list[dict[str, np.ndarray]]]:
        """The tokens of a transcript without start and end, and what the decoder was given in each step."""
        ids, feeds, before = [START, PLAIN], [], nothing(sound)
        while len(ids) < MOST_TOKENS and ids[-1] != END:
            new = ids if len(ids) == 2 else ids[-1:]
            feeds.append({"ids": np.array([new]), **sound, **before})
            logits, *caches = self.decoder.run(None, feeds[-1])
            before = dict(zip(before, caches, strict=True))
            scores = logits[0, -1]
            scores[self._never] = -np.inf
            if len(ids) == 2:
                scores[self._first] = -np.inf
            ids.append(int(scores.argmax()))
        return [each for each in ids[2:] if each != END], feeds

    def heard(self, mel: np.ndarray) -> tuple[list[int], float]:
        """The tokens of a spectrogram's transcript, and the CPU seconds that they took."""
        begun = time.thread_time()
        return self.steps(self.sound(mel))[0], time.thread_time() - begun


def logs(logits: np.ndarray) -> np.ndarray:
    """Logarithms of probabilities, (..., V)."""
    shifted = logits - logits.max(-1, keepdims=True)
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return found


def divergence(wanted: np.ndarray, given: np.ndarray) -> float:
    """Mean Kullback-Leibler divergence in nats of logarithms of probabilities, (T, V)."""
    return float((np.exp(wanted) * (wanted - given)).sum(-1).mean())


def decoder_score(outputs: Arrays, data: Arrays) -> float:
    """Agreement of the next token's distribution with ``data["reference"]``, its logarithms (V)."""
    pairs = zip(outputs["logits"], data["reference"], strict=True)
    return math.exp(-float(np.mean([divergence(wanted[None], logs(given[0, -1:])) for given, wanted in pairs])))


def encoder_score(outputs: Arrays, data: Arrays) -> float:
    """The same over the tokens of whole transcripts (T, or -1), which the decoder's file ``data["decoder"]`` reads."""
    found = []
    for i, (ids, wanted) in enumerate(zip(data["tokens"], data["reference"], strict=True)):
        sound = {name: each[i] for name, each in outputs.items()}
        key = ids.tobytes() + b"".join(array[..., ::83, ::7].tobytes() for array in sound.values())
        if key not in _SEEN:  # the judge asks for each sample in several groups
            given = following(_opened_once(str(data["decoder"][i])), sound, ids[ids >= 0])
            _SEEN[key] = divergence(wanted[: len(given)], given)
        found.append(_SEEN[key])
    return math.exp(-float(np.mean(found)))


_SEEN: dict[bytes, float] = {}


def following(decoder: ort.InferenceSession, sound: Mapping[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """Logarithms of the next token's probabilities after each of ``ids`` but the first, in one pass, (T - 1, V)."""
    feed = {"ids": ids[None], **sound, **nothing(sound)}
    return logs(decoder.run(["logits"], feed)[0][0, 1:])


def nothing(sound: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Keys and values of no tokens."""
    return {f"past_{name}": array[:, :, :0] for name, array in sound.items()}
