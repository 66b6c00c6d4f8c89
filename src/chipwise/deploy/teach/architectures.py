"""Models described by the columns of a row: width, layers, heads and FFN of a decoder, an encoder, or both."""

from __future__ import annotations

from collections.abc import Mapping

from chipwise.core.csvfile import number_in
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import LmHead, States, Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention

VOCABULARY = 32_768  # default if a table has none
MODEL_COLUMNS = ("d_model", "layers", "heads", "kv_heads", "ffn", "vocab", "kind")
PAIR_COLUMNS = tuple(
    f"{side}_{name}" for side in ("encoder", "decoder") for name in ("d_model", "layers", "heads", "ffn")
)
AVERAGED = ("heads", "ffn")  # sizes that tables may state as means over layers
Cells = Mapping[str, str]


def described(cells: Cells) -> ArchSpec:
    """The model described by the sizes in a row. Heads and FFN may be means over layers, which are rounded.

    Raises:
        SpecError: A size is missing or not above zero; ``field`` names it.
    """
    vocabulary = _size(cells, "vocab", VOCABULARY)
    if cells.get("encoder_layers") or cells.get("decoder_layers"):
        return _pair(cells, vocabulary)
    kind = (cells.get("kind") or "decoder").strip().lower()
    if kind not in ("decoder", "encoder"):
        raise SpecError(f"must be decoder or encoder, not {kind!r:.60}", field="kind")
    causal = kind == "decoder"
    width, layers = _size(cells, "d_model"), _size(cells, "layers")
    heads = _size(cells, "heads", max(1, width // 64))
    if width % heads and _is_whole(cells.get("heads") or ""):
        raise SpecError(f"a width of {width} is not divisible by {heads} heads", field="heads")
    attention = _attention(width, heads, _size(cells, "kv_heads", heads), causal=causal)
    ffn = FeedForward(width=_size(cells, "ffn", 4 * width), gated=causal, activation="silu" if causal else "gelu")
    return ArchSpec(
        name=f"{kind}-{layers}x{width}",
        stem=Tokens(vocab_size=vocabulary),
        d_model=width,
        layers=(Layer(attention=attention, ffn=ffn),) * layers,
        positions="none",
        head=LmHead() if causal else States(),
    )


def _pair(cells: Cells, vocabulary: int) -> ArchSpec:
    widths = {side: _size(cells, f"{side}_d_model", _size(cells, "d_model", 0)) for side in ("encoder", "decoder")}
    for side, width in widths.items():
        if not width:
            raise SpecError("is empty", field=f"{side}_d_model")
    depths = {side: _size(cells, f"{side}_layers") for side in widths}
    layers = {}
    for side, width in widths.items():
        writes = side == "decoder"
        heads = _size(cells, f"{side}_heads", _size(cells, "heads", max(1, width // 64)))
        cross = _attention(width, _size(cells, "cross_heads", heads), causal=False) if writes else None
        ffn = _size(cells, f"{side}_ffn", _size(cells, "ffn", 4 * width))
        layers[side] = Layer(
            attention=_attention(width, heads, causal=writes),
            ffn=FeedForward(width=ffn, gated=False, bias=True, activation="relu"),
            cross=cross,
        )
    read, write = widths.values()
    return ArchSpec(
        name=f"encoder-{depths['encoder']}x{read}-decoder-{depths['decoder']}x{write}",
        stem=Tokens(vocab_size=vocabulary),
        d_model=write,
        encoder_d_model=read if read != write else 0,
        layers=(layers["decoder"],) * depths["decoder"],
        encoder=(layers["encoder"],) * depths["encoder"],
        norm="layernorm",
        norm_bias=True,
        norm_place="post",
        positions="none",
    )


def _attention(width: int, heads: int, kv_heads: int | None = None, *, causal: bool) -> Attention:
    kept = heads if kv_heads is None or heads % kv_heads else kv_heads
    return Attention(heads=heads, kv_heads=kept, head_size=max(1, round(width / heads)), rope=False, causal=causal)


def _size(cells: Cells, field: str, default: int | None = None) -> int:
    """Reads a cell as a size."""
    if not cells.get(field) and default is not None:
        return default
    value = number_in(cells, field)
    if not 0.5 <= value < 1e9:
        raise SpecError(f"must be a number of at least 1, not {cells[field]!r:.60}", field=field)
    if value != round(value) and not any(name in field for name in AVERAGED):
        raise SpecError(f"must be a whole number, not {cells[field]!r:.60}", field=field)
    return round(value)


def _is_whole(text: str) -> bool:
    return text.strip().removesuffix(".0").isdecimal()
