"""Meaning of a table's columns: recognised from common names, or mapped by the user.

Names of time columns end in a unit (``ttft_ms``, ``latency (s)``), or their cells do (``35 ms``). A time without a unit
is an error: seconds or milliseconds are never guessed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chipwise.errors import SpecError, UnknownName, short

NAMES: Mapping[str, tuple[str, ...]] = {
    "model": ("model", "file", "model_name", "model_id", "config", "config_path", "spec", "arch", "architecture",
              "checkpoint", "hf_id", "design"),
    "runtime": ("runtime", "engine", "framework", "stack"),
    "weights": ("weights", "format", "quant", "quantization", "quantisation", "dtype", "precision", "weight_format",
                "weight_dtype"),
    "kv": ("kv", "kv_dtype", "kv_cache_dtype", "cache_dtype"),
    "prompt": ("prompt", "prompt_tokens", "prompt_length", "isl", "input_tokens", "input_length", "input_len",
               "tokens_in", "n_prompt", "src_len", "source_length", "sequence_length", "seq_len", "length_in"),
    "new": ("new", "new_tokens", "gen_tokens", "generated_tokens", "osl", "output_tokens", "output_length",
            "output_len", "tokens_out", "n_gen", "tgt_len", "target_length", "length_out", "max_new_tokens"),
    "context": ("context", "decode_context", "depth", "n_depth", "past_tokens", "kv_tokens"),
    "batch": ("batch", "batch_size", "bs", "concurrency", "requests"),
    "machine": ("device", "machine", "hardware", "chip", "host", "board"),
    "total": ("total", "latency", "total_latency", "latency_mean", "e2e", "e2e_latency", "end_to_end", "time",
              "runtime_total", "duration", "elapsed", "request", "request_latency"),
    "ttft": ("ttft", "ttft_p50", "time_to_first_token", "first_token", "prefill", "prefill_time", "prefill_latency"),
    "tpot": ("tpot", "tpot_p50", "itl", "time_per_token", "time_per_output_token", "inter_token_latency", "per_token",
             "decode", "decode_time", "decode_latency"),
    "prefill_rate": ("prefill_tokens_per_s", "prefill_tps", "prefill_rate", "pp_tokens_per_s", "prompt_tokens_per_s",
                     "prefill_tok_s", "pp_tok_s"),
    "decode_rate": ("decode_tokens_per_s", "decode_tps", "decode_rate", "tg_tokens_per_s", "generation_tokens_per_s",
                    "decode_tok_s", "tg_tok_s"),
    "total_rate": ("tokens_per_s", "tokens_s", "tokens_per_second", "throughput", "tps", "tok_s"),
    "d_model": ("d_model", "hidden", "hidden_size", "width", "embed_dim"),
    "layers": ("layers", "n_layers", "num_layers", "depth_layers", "n_layer", "num_hidden_layers"),
    "heads": ("heads", "n_heads", "num_heads", "num_attention_heads"),
    "kv_heads": ("kv_heads", "n_kv_heads", "num_key_value_heads"),
    "ffn": ("ffn", "ffn_width", "ffn_dim", "d_ff", "intermediate_size", "ffn_embed_dim"),
    "vocab": ("vocab", "vocab_size", "n_vocab"),
    "kind": ("kind", "model_kind", "type"),
    "encoder_d_model": ("encoder_d_model", "encoder_width", "encoder_embed_dim", "encoder_hidden"),
    "encoder_layers": ("encoder_layers", "encoder_layer_num", "n_encoder_layers", "encoder_depth"),
    "encoder_heads": ("encoder_heads", "encoder_self_attention_heads", "encoder_self_attention_heads_avg"),
    "encoder_ffn": ("encoder_ffn", "encoder_ffn_dim", "encoder_ffn_embed_dim", "encoder_ffn_embed_dim_avg"),
    "decoder_d_model": ("decoder_d_model", "decoder_width", "decoder_embed_dim", "decoder_hidden"),
    "decoder_layers": ("decoder_layers", "decoder_layer_num", "n_decoder_layers", "decoder_depth"),
    "decoder_heads": ("decoder_heads", "decoder_self_attention_heads", "decoder_self_attention_heads_avg"),
    "decoder_ffn": ("decoder_ffn", "decoder_ffn_dim", "decoder_ffn_embed_dim", "decoder_ffn_embed_dim_avg"),
    "shape": ("shape",),
    "value": ("value",),
    "cross_heads": ("cross_heads", "decoder_ende_attention_heads", "decoder_ende_attention_heads_avg"),
}  # fmt: skip
"""Fields of a row, with their names in tables."""
TIMES = ("total", "ttft", "tpot")
RATES = ("prefill_rate", "decode_rate", "total_rate")
MISSPELT = 0.8  # similarity of two names above which one is taken for a misspelling of the other
VARIANTS = ("variant", "backend", "threads")  # columns that distinguish configurations of one machine
UNITS: Mapping[str, float] = {
    "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0,
    "ms": 1e-3, "msec": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3,
    "us": 1e-6, "µs": 1e-6, "usec": 1e-6, "microseconds": 1e-6, "ns": 1e-9, "min": 60.0, "minutes": 60.0,
}  # fmt: skip
_RATES: Mapping[str, tuple[str, ...]] = {
    "prefill_rate": (*NAMES["ttft"], "pp", "prompt"),
    "decode_rate": (*NAMES["tpot"], "tg", "generation"),
    "total_rate": NAMES["total"],
}
_RATE_UNIT = re.compile(r"_(?:tokens?|toks?|t)_?(?:per|/)_?s(?:ec(?:ond)?)?$|_(?:tps|tok_s|t_s)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of a table.

    Attributes:
        fields: Maps each field to a column of the table.
        scale: Maps each time field to the unit of its column, in seconds (0.001 for milliseconds); a field whose cells
            contain units has no entry.
        variants: Columns that distinguish configurations of one machine.
        left_out: Columns that were not used.
    """

    fields: Mapping[str, str]
    scale: Mapping[str, float]
    variants: tuple[str, ...]
    left_out: tuple[str, ...]

    def sentences(self) -> list[str]:
        """Text that says how columns were interpreted, one line per field."""
        lines = []
        for field, column in self.fields.items():
            unit = next((name for name, factor in UNITS.items() if factor == self.scale.get(field)), "")
            lines.append(f"{field} <- {column}" + (f" in {unit}" if unit else ""))
        return lines


def find_columns(names: Sequence[str], wanted: Mapping[str, str] | None = None, *, file: str | None = None) -> Columns:
    """Finds the fields of the columns ``names``.

    Args:
        names: The table's columns.
        wanted: The user's mapping of columns to fields, such as ``{"lat": "total_ms"}``; ``-`` leaves a column out.
        file: File name for messages.

    Raises:
        SpecError: A mapped column does not exist, or two columns have the same field.
        UnknownName: No such field is known.
    """
    fields: dict[str, str] = {}
    scale: dict[str, float] = {}
    variants: list[str] = []
    mapped = dict(wanted or {})
    for column in mapped:
        if column not in names:
            raise UnknownName("column", column, names)
    field: str | None
    for column in [*mapped, *(name for name in names if name not in mapped)]:
        if column in mapped:
            if mapped[column] == "-":
                continue
            field, unit = _mapped(mapped[column])
        else:
            field, unit = _guessed(column)
        if field == "variant":
            variants.append(column)
        elif field in fields and column in mapped:
            raise SpecError(f"{fields[field]} and {column} are both mapped to {field}", file=file)
        elif field and (field not in fields or (fields[field] not in mapped and _better(column, fields[field], field))):
            fields[field] = column
            if field in TIMES and unit is not None:
                scale[field] = unit
    used = {*fields.values(), *variants}
    for column in names:
        if column not in used and column not in mapped and (meant := _misspelt(column, fields)):
            raise SpecError(
                f"has a column {short(column)}, which is not read; did you mean {meant!r}? Use --map {column}={meant}, "
                f"or --map {column}=- to leave it out",
                file=file,
            )
    return Columns(
        fields=fields,
        scale=scale,
        variants=tuple(variants),
        left_out=tuple(name for name in names if name not in used),
    )


def _misspelt(column: str, found: Mapping[str, str]) -> str | None:
    """The field whose name resembles an unread column's name, unless another column has that field."""
    key = plain(column)
    stem, _, unit = key.rpartition("_")
    for field, names in NAMES.items():
        tried = stem if field in TIMES and unit in UNITS else key
        if field not in found and difflib.get_close_matches(tried[:50], names, n=1, cutoff=MISSPELT):
            return field
    return None


def _mapped(text: str) -> tuple[str, float | None]:
    """The field and the unit in a user's mapping such as ``total_ms``."""
    key = plain(text)
    if key == "variant":
        return "variant", None
    if key in NAMES:
        return key, None
    field, unit = _guessed(text)
    if field is None or field not in (*TIMES, *RATES):
        known = [*NAMES, "variant", *(f"{name}_s" for name in TIMES), *(f"{name}_ms" for name in TIMES)]
        raise UnknownName("field", text, known)
    return field, unit


def _guessed(column: str) -> tuple[str | None, float | None]:
    key = plain(column)
    if key in VARIANTS:
        return "variant", None
    for field, names in NAMES.items():
        if key in names:
            return field, None
    if (found := _RATE_UNIT.search(key)) is not None:
        stem = key[: found.start()]
        for rate, stems in _RATES.items():
            if stem in stems:
                return rate, None
    stem, _, unit = key.rpartition("_")
    if unit in UNITS:
        for field in TIMES:
            if stem in NAMES[field]:
                return field, UNITS[unit]
        if stem == "" or key in ("seconds", "ms"):
            return "total", UNITS[unit]
    return None, None


def _better(column: str, before: str, field: str) -> bool:
    """Whether a column's name fits a field better than the best one so far."""
    names, new, old = NAMES[field], plain(column), plain(before)
    return new in names and old in names and names.index(new) < names.index(old)


def plain(name: str) -> str:
    """A column's name in lower case, words and unit joined by underscores.

    >>> plain("Latency (ms)"), plain("TTFT [s]"), plain("prefill tok/s")
    ('latency_ms', 'ttft_s', 'prefill_tok_s')
    """
    return re.sub(r"[^a-z0-9µ]+", "_", name.strip().lower()).strip("_")
