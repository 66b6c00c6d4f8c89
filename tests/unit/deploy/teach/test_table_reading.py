"""Tables as people have them: rows read, rows refused with one message each, whole files refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from chipwise.deploy.teach.observations import MeasuredRow
from chipwise.deploy.teach.reading import from_record, read_table, to_record
from chipwise.errors import SpecError
from chipwise.model.arch import io
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Tokens


def table(folder: Path, text: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_rates_and_times_become_seconds_of_one_request(tmp_path: Path) -> None:
    text = "model,quant,prompt_tokens,gen_tokens,batch,ttft_ms,decode_tokens_per_s,tokens_per_s\n"
    (row,) = read_table(table(tmp_path, text + "gpt2,Q4_0,100,20,2,35,50,25\n")).rows
    assert row.ttft_s == pytest.approx(0.035)
    assert row.tpot_s == pytest.approx(2 / 50)  # two requests share 50 tokens a second
    assert row.total_s == pytest.approx(2 * 20 / 25)
    assert (row.weights, row.prompt_tokens, row.new_tokens, row.batch) == ("q4_0", 100, 20, 2)


def test_a_rate_of_prompts_needs_their_length(tmp_path: Path) -> None:
    """Prefill speed depends on the prompt's length, so a rate without a length is refused."""
    text = "model,prompt_tokens,prefill_tokens_per_s,decode_tokens_per_s\ngpt2,100,50,\ngpt2,,20,10\ngpt2,,20,\n"
    found = read_table(table(tmp_path, text))
    stated, unstated = found.rows
    assert (stated.ttft_s, unstated.ttft_s, unstated.tpot_s) == (pytest.approx(2.0), None, pytest.approx(0.1))
    assert found.notes == ("1 rate of prompts left out, because no column says how long the prompts were",)
    assert "not their length; add a column prompt_tokens" in found.problems[4]


def test_gzip_and_units_in_cells(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"model,latency\ngpt2,35 ms\ngpt2,0.07 s\n"))
    assert [row.total_s for row in read_table(path).rows] == pytest.approx([0.035, 0.07])


def test_a_model_by_file_by_spec_in_the_cell_and_by_its_sizes(tmp_path: Path) -> None:
    arch = ArchSpec(stem=Tokens(vocab_size=100), d_model=64, layers=read_layers(), positions="none")
    io.save(arch, tmp_path / "own.json")
    text = "model,d_model,layers,heads,ffn,vocab,total_s\nown.json,,,,,,1\n"
    text += json.dumps(io.to_data(arch)).replace('"', '""').join(('"', '"')) + ",,,,,,2\n,64,3,4,256,100,3\n"
    first, second, third = (row.model for row in read_table(table(tmp_path, text)).rows)
    assert isinstance(first, ArchSpec)
    assert isinstance(second, ArchSpec)
    assert isinstance(third, ArchSpec)
    assert first.digest == second.digest == arch.digest
    assert (third.d_model, len(third.layers), third.layers[0].ffn.width, third.vocab_size) == (64, 3, 256, 100)


def read_layers():
    from chipwise.model.arch.arch import uniform

    return tuple(
        layer
        for layer in uniform(vocab_size=100, d_model=64, depth=2, heads=4, ffn_width=128).layers
        for layer in [_plain(layer)]
    )


def _plain(layer):
    from dataclasses import replace

    return replace(layer, attention=replace(layer.attention, rope=False))


def test_two_widths_from_columns_of_averages(tmp_path: Path) -> None:
    text = (
        "encoder_embed_dim,encoder_layer_num,encoder_ffn_embed_dim_avg,decoder_embed_dim,decoder_layer_num,"
        "decoder_ffn_embed_dim_avg,latency\n640,6,2389.3,512,3,1024,400 ms\n"
    )
    (row,) = read_table(table(tmp_path, text)).rows
    arch = row.model
    assert isinstance(arch, ArchSpec)
    assert (arch.encoder_width, arch.d_model, len(arch.encoder), len(arch.layers)) == (640, 512, 6, 3)
    assert arch.encoder[0].ffn.width == 2389
    assert row.total_s == pytest.approx(0.4)


def test_a_row_survives_its_record(tmp_path: Path) -> None:
    row = MeasuredRow(number=3, model="gpt2", weights="int8", tpot_s=0.01, context=7, variant="cuda")
    assert from_record(json.loads(json.dumps(to_record(row)))) == row


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("no-such-model,1", "unknown model"),
        ("gpt2,", "neither a time nor a rate"),
        ("gpt2,-1", "above 0"),
        ("gpt2,fast", "must be a time"),
        (",1", "is empty"),
        ("{broken,1", "JSON"),
    ],
)
def test_a_bad_row_says_why_and_the_others_are_used(line: str, says: str, tmp_path: Path) -> None:
    found = read_table(table(tmp_path, f"model,total_s\ngpt2,1\n{line}\n"))
    assert [row.number for row in found.rows] == [2]
    assert says in found.problems[3]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no rows"),
        ("model,total_s\n", "holds no rows"),
        ("model,speed\ngpt2,1\n", "no column has a time or a rate"),
        ("name,total_s\ngpt2,1\n", "no column names the model"),
        ("model,latency\ngpt2,35\n", "has no unit"),
        ("model,total_s\nnonsense,1\n", "none of 1 row can be used; line 2"),
        ("model,model,total_s\ngpt2,gpt2,1\n", "twice"),
    ],
)
def test_a_table_that_cannot_be_used(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=says):
        read_table(table(tmp_path, text))


def test_only_some_rows(tmp_path: Path) -> None:
    path = table(tmp_path, "device,model,total_s\na,gpt2,1\nb,gpt2,2\n")
    assert [row.total_s for row in read_table(path, where={"device": "B"}).rows] == [2]
    with pytest.raises(SpecError, match="no row has device = c"):
        read_table(path, where={"device": "c"})


def test_an_unknown_runtime_is_priced_as_the_devices_own_and_set_apart(tmp_path: Path) -> None:
    found = read_table(table(tmp_path, "model,runtime,total_s\ngpt2,ollama,1\ngpt2,homemade,1\n"))
    assert [(row.runtime, row.variant) for row in found.rows] == [("llama.cpp", ""), (None, "homemade")]
    assert "homemade" in found.notes[0]
