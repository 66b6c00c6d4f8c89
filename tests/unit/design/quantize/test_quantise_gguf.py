"""A decoder becomes a GGUF mix within limits, or the stock file; bad input is refused in one line."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

for needed in ("gguf", "torch", "tokenizers", "scipy"):
    pytest.importorskip(needed)

import torch  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: E402

import chipwise  # noqa: E402
from chipwise.deploy.export import gguf  # noqa: E402
from chipwise.deploy.export.gguf_read import GgufFile  # noqa: E402
from chipwise.deploy.export.hf import load_pretrained, save_pretrained  # noqa: E402
from chipwise.deploy.runtimes.ggml import TYPES, library_path  # noqa: E402
from chipwise.deploy.runtimes.llama_timing import FileTimes  # noqa: E402
from chipwise.design.quantize import gguf_run, windows  # noqa: E402
from chipwise.design.quantize.answers import Kept  # noqa: E402
from chipwise.design.quantize.decoder import StreamedDecoder  # noqa: E402
from chipwise.design.quantize.gguf_file import as_gguf  # noqa: E402
from chipwise.design.quantize.gguf_run import GgufRun  # noqa: E402
from chipwise.design.quantize.kv_cache import CACHES, cache_bytes, hadamard  # noqa: E402
from chipwise.errors import ChipwiseError, DataError, Infeasible, SpecError, StorageError, StudyError, Unsupported  # noqa: E402
from chipwise.model.arch.arch import ArchSpec  # noqa: E402
from chipwise.model.arch.design import Design  # noqa: E402
from chipwise.model.arch.ends import Tokens  # noqa: E402
from chipwise.model.arch.feed_forward import FeedForward  # noqa: E402
from chipwise.model.arch.layer import Layer  # noqa: E402
from chipwise.model.arch.mixers import Attention  # noqa: E402
from chipwise.model.walk.weights import weight_shapes  # noqa: E402

if library_path() is None:
    pytest.skip("needs xllamacpp or llama-cpp-python", allow_module_level=True)

CHIP = "raspberry-pi-5"  # predicted prices: nothing is timed


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    drawn, folder = random.Random(0), tmp_path_factory.mktemp("texts")
    words = ["".join(drawn.choices("abcdefgh", k=4)) for _ in range(60)]
    paths = folder / "one.txt", folder / "two.txt"
    for path in paths:
        path.write_text(" ".join(drawn.choices(words, k=600)), encoding="utf-8")
    return paths


def arch(vocab: int) -> ArchSpec:
    layer = Layer(attention=Attention(heads=2, kv_heads=1, head_size=32), ffn=FeedForward(width=96))
    return ArchSpec(name="tiny", stem=Tokens(vocab_size=vocab), d_model=64, layers=(layer, layer), max_tokens=32)


def drawn_weights(spec: ArchSpec) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(0)
    return {
        name: drawn.standard_normal(shape).astype(np.float32) / (1 if len(shape) == 1 else shape[1] ** 0.5)
        for name, shape in weight_shapes(spec).items()
    }


@pytest.fixture(scope="module")
def tokenizer(texts: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    made.train([str(texts[0])], trainers.BpeTrainer(vocab_size=300, initial_alphabet=letters, show_progress=False))
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.fixture
def model(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    spec = arch(Tokenizer.from_file(str(tokenizer)).get_vocab_size())
    return gguf.export(Design(arch=spec, weights="fp16"), drawn_weights(spec), tmp_path / "a.gguf", tokenizer=tokenizer)


def test_the_written_file_has_the_formats_and_the_size_that_were_promised(model: Path, texts: tuple) -> None:
    found = chipwise.quantize(model, data=list(texts), device=CHIP, memory="<= 60 kB", seed=0)
    file = GgufFile.open(found.file)
    assert {name: file.tensors[name].tensor_type.name for name in found.formats} == dict(found.formats)
    assert sum(int(tensor.n_bytes) for tensor in file.tensors.values()) <= 60_000
    assert set(found.chosen.domains) == {"one.txt", "two.txt"}
    assert found.chosen.loss > 0
    assert not Path("a.mix.gguf.state").exists()
    shown, card = Path("a.mix.html").read_text(encoding="utf-8"), Path("a.mix.md").read_text(encoding="utf-8")
    for part in ("attn_q", found.chosen.name, found.formats["blk.1.ffn_down.weight"]):
        assert part in shown
    assert "licence: not stated in the files" in card
    fronts = [[item.predicted_loss for item in found.fronts[what]] for what in ("size", "time")]
    assert all(losses == sorted(losses, reverse=True) for losses in fronts)  # more room never loses more
    best = [item for item in found.fronts["size"] if item.size_bytes <= found.chosen.size_bytes]
    assert all(item.predicted_loss >= found.chosen.predicted_loss for item in best)


def test_a_model_of_few_positions_is_timed_here(model: Path, texts: tuple) -> None:
    """It reads 32 tokens, fewer than the prompt and the steps that are timed of others."""
    found = chipwise.quantize(model, data=texts[0], context=32, dry_run=True)
    assert found.prices.startswith("measured on this machine")
    assert min(found.chosen.predicted_s, found.chosen.predicted_prefill_s) > 0
    assert {each.cache for each in found.stock} <= {"f16", "q8_0", "q4_0"}


def test_shrink_of_a_gguf_file_is_quantize(model: Path, texts: tuple) -> None:
    limits = {"device": CHIP, "memory": "<= 60 kB", "tpot": "<= 1 s"}
    shrunk = chipwise.shrink(model, data=texts[:1], out="s.gguf", **limits)
    assert shrunk.formats == chipwise.quantize(model, data=texts[0], **limits).formats
    assert Path("s.gguf").read_bytes() == Path("a.mix.gguf").read_bytes()
    with pytest.raises(ChipwiseError, match="unknown form 'onnx'; known: gguf"):
        chipwise.shrink(model, data=texts[:1], to="onnx")
    assert chipwise.shrink(model, data=texts[:1], out="d.gguf", dry_run=True, **limits).file is None


def test_a_mix_that_is_a_stock_mix_is_answered_by_the_stock_file(model: Path, texts: tuple) -> None:
    q8_0 = TYPES["Q8_0"].bits / 16
    least = sum(int(tensor.n_bytes) for tensor in GgufFile.open(model).tensors.values() if len(tensor.shape) == 2)
    found = chipwise.quantize(model, data=texts[0], device=CHIP, memory=f"<= {least * q8_0 + 2500} B")
    rival = next(each for each in found.stock if each.loss is not None)
    assert rival.name == "Q8_0"
    assert found.verdict.startswith(("use the stock file: Q8_0", "the chosen mix"))
    if found.verdict.startswith("use"):
        assert set(found.formats.values()) == {"Q8_0"}


def test_a_mix_that_no_choice_makes_fast_enough_is_kept_as_beyond_the_limit(
    model: Path, texts: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path / "state", "a", resume=False)
    run = GgufRun(GgufFile.open(model), texts[:1], kept, device=CHIP, seed=0, on_progress=lambda *_: None)
    mix, cache = run.choose({})
    promise = run.promise("chosen", mix, {}, cache)
    slow, quick = FileTimes(1e6 * promise.predicted_s, 1.0), FileTimes(promise.predicted_s, 1.0)
    monkeypatch.setattr(run, "race", lambda mixes: ([slow, quick], 0.0))
    found, same, times, _ = run._kept_time(promise, mix, {"time": promise.predicted_s}, [(mix, "f16")], None)
    assert (found.keeps, same, times[0]) == (False, mix, slow)


def test_a_dry_run_promises_and_writes_nothing_and_its_answers_are_used_again(model: Path, texts: tuple) -> None:
    found = chipwise.quantize(model, data=texts[0], device=CHIP, dry_run=True)
    assert found.file is None
    assert "KV f16" in found.plan
    assert CHIP in found.plan
    assert not Path("a.mix.gguf").exists()
    with pytest.raises(StudyError, match="--resume"):
        chipwise.quantize(model, data=texts[0], device=CHIP)
    with pytest.raises(StudyError, match="another model or text"):
        chipwise.quantize(model, data=texts[1], device=CHIP, resume=True)
    stages = []
    chipwise.quantize(
        model, data=texts[0], device=CHIP, resume=True, on_progress=lambda stage, done, total: stages.append(stage)
    )
    assert "reading text" not in stages  # the passes are not made twice


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"weights": "q4_k"}, Unsupported, "q4_k stores blocks of 256 values, but rows of .* have 64 values; .* q5_0"),
        ({"weights": "q9"}, ChipwiseError, "unknown GGUF format"),
        ({"tpot": "8"}, SpecError, "tpot: .*write one such as"),
        ({"memory": ">= 1 MB"}, SpecError, "memory: must be an upper limit"),
        ({"context": 100}, SpecError, "context: .*reads at most 32 tokens"),
        ({"memory": "<= 1 kB"}, Infeasible, "memory: llama.cpp's formats need at least .* kB"),
        ({"loss": "<= 2 %"}, SpecError, "only applies to an ONNX file"),
    ],
)
def test_bad_options_are_refused(model: Path, texts: tuple, options: dict, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        chipwise.quantize(model, data=texts[0], device=CHIP, **options)
    if "memory" not in options:  # refused before anything is computed
        assert not list(Path().glob("*.state"))


def test_divergence_on_a_second_domain_is_told_beside_a_single_text(model: Path, texts: tuple) -> None:
    """English is held out only: it changes neither the divergence of the verdict nor the number of its tokens."""
    found = chipwise.quantize(model, data=texts[0], device=CHIP)
    assert list(found.chosen.domains) == ["one.txt", windows.OTHER]
    assert found.chosen.loss == pytest.approx(found.chosen.domains["one.txt"])
    assert found.held_tokens % windows.HELD_OUT == 0
    assert gguf_run._far({"one": 0.02, "two": 0.04}) == ()
    (note,) = gguf_run._far({"one": 0.02, "two": 0.05})
    assert note.startswith("the divergence on two is 2.5 times that on one; ")


def test_an_architecture_that_is_not_read_is_named_with_those_that_are(model: Path, texts: tuple) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter("g.gguf", "gemma9")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with pytest.raises(
        Unsupported, match=r"g.gguf: a GGUF file of architecture gemma9; chipwise can read llama, .*tools"
    ):
        chipwise.quantize("g.gguf", data=texts[0])
    assert not list(Path().glob("*.state"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("answers.json", '{"identity": '),
        ("losses/layer-1.json", '{"blk.1.'),
        ("losses/layer-1.json", "{}"),
        ("losses/layer-1.json", '{"blk.1.attn_q.weight": {"losses": {"Q4_0": "much"}}}'),
        ("losses/begin.json", ""),
    ],
)
def test_a_damaged_state_is_named_and_left_alone(model: Path, texts: tuple, name: str, content: str) -> None:
    chipwise.quantize(model, data=texts[0], device=CHIP, dry_run=True)
    state = Path("a.mix.gguf.state")
    (state / name).write_text(content, encoding="utf-8")
    with pytest.raises(
        StudyError, match=rf"{name.split('/')[0]}.*; remove the folder a.mix.gguf.state and start again"
    ):
        chipwise.quantize(model, data=texts[0], device=CHIP, resume=True)
    assert (state / name).read_text(encoding="utf-8") == content


def test_a_damaged_input_of_a_layer_is_named(model: Path, texts: tuple) -> None:
    """The run stops after the passes' first layer was read; its kept input is torn."""

    def stop(at: str, done: int, total: int) -> None:
        if at == "reading text":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chipwise.quantize(model, data=texts[0], device=CHIP, on_progress=stop)
    kept = Path("a.mix.gguf.state/losses/input-0.npy")
    kept.write_bytes(kept.read_bytes()[:1000])
    with pytest.raises(StudyError, match=r"input-0.npy: missing or damaged; remove a.mix.gguf.state"):
        chipwise.quantize(model, data=texts[0], device=CHIP, resume=True)


def test_text_that_is_too_short_and_weights_that_are_not_finite_leave_nothing_behind(
    model: Path, texts: tuple, tokenizer: Path
) -> None:
    Path("short.txt").write_text("abcd", encoding="utf-8")
    with pytest.raises(DataError, match="at least 160 are needed"):
        chipwise.quantize(model, data="short.txt", device=CHIP)
    spec = arch(Tokenizer.from_file(str(tokenizer)).get_vocab_size())
    broken = drawn_weights(spec)
    broken["layers.1.ffn.up.weight"][0, 0] = np.nan
    gguf.export(Design(arch=spec, weights="fp16"), broken, model, tokenizer=tokenizer)
    with pytest.raises(SpecError, match=r"blk.1.ffn_up.weight: .*not finite"):
        chipwise.quantize(model, data=texts[0], device=CHIP)
    assert not list(Path().glob("*.state"))


def test_a_folder_is_written_as_the_same_file_whether_weights_are_streamed_or_not(
    tmp_path: Path, tokenizer: Path, texts: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one weight is read at a time; a value that is not finite is named in one line, and no file is left."""
    monkeypatch.chdir(tmp_path)
    spec = replace(arch(Tokenizer.from_file(str(tokenizer)).get_vocab_size()), name="folder")
    folder, weights = tmp_path / "folder", drawn_weights(spec)
    save_pretrained(spec, weights, tokenizer, folder)
    told: list[tuple[int, int]] = []
    streamed = as_gguf(folder, tmp_path / "state", lambda _, done, total: told.append((done, total)))
    assert told == [(done, 20) for done in range(1, 21)]  # table (also the head), norm; nine for each of two layers
    loaded, held = load_pretrained(folder)
    whole = gguf.export(Design(arch=loaded, weights="fp16"), held, tmp_path / "b.gguf", tokenizer=tokenizer)
    assert streamed.read_bytes() == whole.read_bytes()
    stored = load_file(folder / "model.safetensors")
    stored["model.layers.1.mlp.up_proj.weight"][0, 0] = np.nan
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SpecError, match=r"layers.1.ffn.up.weight has values that are not finite"):
        chipwise.quantize(folder, data=texts[0], device=CHIP)
    assert not list(tmp_path.glob("folder.mix*"))


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_a_full_disk_loses_no_answer(model: Path, texts: tuple, share: float) -> None:
    """No file may grow past a share of the mix's size: the tokenizer, a stream or the mix itself is refused."""
    resource = pytest.importorskip("resource", reason="limits of files are POSIX's")
    whole = chipwise.quantize(model, data=texts[0], device=CHIP, out=Path("whole.gguf"))
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(share * Path("whole.gguf").stat().st_size), most))
    try:
        with pytest.raises(StorageError, match=r"disk is full; free some space and go on with --resume"):
            chipwise.quantize(model, data=texts[0], device=CHIP)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))
    assert not Path("a.mix.gguf").exists()
    found = chipwise.quantize(model, data=texts[0], device=CHIP, resume=True)
    assert Path("a.mix.gguf").read_bytes() == Path("whole.gguf").read_bytes()
    assert found.chosen == whole.chosen
    assert sorted(path.name for path in Path().iterdir()) == [
        "a.gguf",
        *(f"a.mix.{ending}" for ending in ("gguf", "html", "md")),
        *(f"whole.{ending}" for ending in ("gguf", "html", "md")),
    ]


@pytest.mark.parametrize(
    ("stage", "next_step"), [("reading text", 2), ("writing Q", 3), ("original on held-out text", None)]
)
def test_a_stopped_run_goes_on_at_the_step_after_the_last(
    model: Path, texts: tuple, stage: str, next_step: int | None
) -> None:
    """Stopped after the second step. The layer whose inputs are kept is read again; tensors and streams are not."""
    whole = chipwise.quantize(model, data=texts[0], device=CHIP, out=Path("whole.gguf"))

    def stop(at: str, done: int, total: int) -> None:
        if stage in at and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chipwise.quantize(model, data=texts[0], device=CHIP, on_progress=stop)
    steps: list[int] = []

    def note(at: str, done: int, total: int) -> None:
        if stage in at:
            steps.append(done)

    found = chipwise.quantize(model, data=texts[0], device=CHIP, resume=True, on_progress=note)
    assert next(iter(steps), None) == next_step
    assert Path("a.mix.gguf").read_bytes() == Path("whole.gguf").read_bytes()
    assert found.chosen == whole.chosen


def test_bytes_of_a_cache_by_pencil(tokenizer: Path) -> None:
    """Keys and values of two layers with one KV head of 32 values: 128 values a token, in blocks of 32."""
    assert [cache_bytes(arch(300), kind, 10) for kind in CACHES] == [2560, 4 * 340, 4 * 180]
    assert hadamard(64, 64).square().sum().item() == pytest.approx(64)
    assert torch.equal(hadamard(32, 64), torch.eye(32))
    for size, most in ((128, 128), (128, 64), (192, 192)):
        turn = hadamard(size, most)
        assert torch.allclose(turn @ turn, torch.eye(size), atol=1e-6)


def test_keys_and_values_count_as_memory_and_their_format_is_chosen_with_the_weights(model: Path, texts: tuple) -> None:
    """In 32 tokens, f16 takes 8,192 bytes and q4_0 2,304; each memory limit is kept with the cache in it."""
    free = chipwise.quantize(model, data=texts[0], device=CHIP, dry_run=True, context=32, memory="<= 1 MB")
    shutil.rmtree("a.mix.gguf.state")
    assert (free.chosen.cache, free.chosen.cache_bytes) == ("f16", 8192)
    least = min(each.size_bytes for each in free.stock)
    found = chipwise.quantize(model, data=texts[0], device=CHIP, context=32, memory=f"<= {least + 4000} B")
    assert found.chosen.cache != "f16"
    assert found.chosen.size_bytes + found.chosen.cache_bytes <= least + 4000
    assert f"-ctk {found.chosen.cache}" in found.plan or found.verdict.startswith("use")
    assert found.chosen.loss > 0


@pytest.mark.parametrize("size", [32, 64, 128])
def test_rounded_caches_change_logits_as_llama_cpp_does(tmp_path: Path, tokenizer: Path, size: int) -> None:
    """The rest (llama.cpp also rounds queries) is a fifth of the effect of q4_0, root mean square, at the most."""
    pytest.importorskip("xllamacpp")
    from chipwise.deploy.runtimes.llama_server import LlamaServer

    spec = arch(Tokenizer.from_file(str(tokenizer)).get_vocab_size())
    attention = Attention(heads=2, kv_heads=1, head_size=size)
    spec = replace(spec, layers=tuple(replace(layer, attention=attention) for layer in spec.layers))
    path = gguf.export(Design(arch=spec), drawn_weights(spec), tmp_path / "m.gguf", tokenizer=tokenizer)
    tokens, decoder = np.random.default_rng(0).integers(1, 200, (1, 24)), StreamedDecoder(GgufFile.open(path))

    def theirs(cache: str) -> np.ndarray:
        server = LlamaServer(path, cache=cache, context=64)
        return np.stack([server.log_probabilities(tokens[0, : i + 1].tolist(), spec.vocab_size) for i in range(24)])

    h_BTD = decoder.head_inputs(torch.from_numpy(tokens), cache="q4_0")
    ours = (h_BTD @ decoder.head().T).log_softmax(-1)[0].numpy()
    rounded, exact = theirs("q4_0"), theirs("f32")
    rest, effect = (float(np.sqrt(np.square(rounded - each).mean())) for each in (ours, exact))
    assert rest <= 0.2 * effect
