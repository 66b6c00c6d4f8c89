"""Other outputs of the shipped modelling files: losses, caches and metadata."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from chipwise.deploy.export.hf import save_pretrained
from chipwise.model import kinds
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.denoiser import graph as denoiser_graph
from chipwise.model.kinds.encoder import graph as encoder_graph
from chipwise.model.kinds.image import graph as image_graph
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.question.question import Question, QuestionStem
from chipwise.model.kinds.ranking import graph as ranking_graph
from chipwise.model.kinds.ranking.stem import RankingStem, Scores
from chipwise.model.kinds.sound import graph as sound_graph
from chipwise.model.kinds.sound.form import frame_conv
from chipwise.model.kinds.sound.stem import Ctc, SoundStem
from support import block_suite, form_suite

pytest.importorskip("transformers", reason="transformers comes with chipwise[search]")


def shipped(arch: ArchSpec, model: torch.nn.Module, folder: Path, file: str, name: str) -> Any:
    """The model of a folder, by the shipped file itself."""
    save_pretrained(arch, dict(model.state_dict()), None, folder)
    (path,) = Path(kinds.__file__).parent.rglob(f"{file}.py")
    module = importlib.import_module(f"{kinds.__name__}.{path.parent.name}.{file}")
    config = json.loads((folder / "config.json").read_text())
    made = getattr(module, name)(module.ChipwiseConfig(**config))
    made.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    made.tie_weights()
    return made.eval()


PLAIN = uniform(vocab_size=40, d_model=32, depth=2, heads=2, kv_heads=1, ffn_width=64, max_tokens=16)
DECODER = replace(PLAIN, layers=(replace(PLAIN.layers[0], attention_conv=3), PLAIN.layers[1]))  # no family's own


def test_a_shipped_decoder_keeps_a_cache_unless_it_trains_or_is_told_not_to(tmp_path: Path) -> None:
    model, tokens = block_suite.shaken(DECODER, seed=0), block_suite.random_tokens(DECODER, length=8, batch=2)
    made = shipped(DECODER, model, tmp_path, "modeling_chipwise", "ChipwiseForCausalLM")
    with torch.no_grad():
        wanted = model(tokens)[0]
        first = made(tokens[:, :5])
        assert first.past_key_values.get_seq_length() == 5
        rest = made(tokens[:, 5:], past_key_values=first.past_key_values)
        torch.testing.assert_close(rest.logits, wanted[:, 5:], atol=1e-4, rtol=1e-4)
        assert rest.past_key_values.get_seq_length() == 8
        assert rest.past_key_values is first.past_key_values
        assert made(tokens, use_cache=False).past_key_values is None
        assert made(tokens, logits_to_keep=3).logits.shape[1] == 3
        assert isinstance(made(tokens, return_dict=False), tuple)
        embedded = made(inputs_embeds=made.embedding(tokens)).logits
        torch.testing.assert_close(embedded, wanted, atol=1e-4, rtol=1e-4)
        made.train()
        assert made(tokens).past_key_values is None
        loss = made(tokens, labels=tokens).loss
        torch.testing.assert_close(loss, F.cross_entropy(wanted[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()))
    for wrong in ({}, {"input_ids": tokens, "inputs_embeds": made.embedding(tokens)}):
        with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
            made(**wrong)


def transcriber() -> ArchSpec:
    stem = SoundStem(seconds=0.24, rate=100.0, channels=5, convs=(frame_conv(16, 1), frame_conv(16, 2)))
    attention = Attention(heads=2, kv_heads=2, head_size=8, rope=False, causal=False)
    return ArchSpec(
        stem=stem,
        head=Ctc(count=7),
        d_model=16,
        layers=(Layer(attention=attention, ffn=FeedForward(width=20)),),
        max_tokens=stem.tokens,
        norm="layernorm",
        positions="learned",
    )


def test_a_shipped_transcriber_has_the_loss_of_connectionist_temporal_classification(tmp_path: Path) -> None:
    """Twelve positions for texts of three and two characters, 0 filling up: of each the mean of -ln p a character."""
    arch = transcriber()
    model, (sounds,) = form_suite.shaken(arch, seed=0), form_suite.inputs_of(arch, batch=2)
    made = shipped(arch, model, tmp_path, "modeling_chipwise_sound", "ChipwiseForCTC")
    labels = torch.tensor([[1, 2, 2], [6, 3, 0]])
    with torch.no_grad():
        found = made(sounds, labels=labels)
        alone = [
            F.ctc_loss(model(sounds[i : i + 1])[0].log_softmax(-1)[:, None], text[None], [12], [len(text)])
            for i, text in enumerate((labels[0], labels[1, :2]))
        ]
        torch.testing.assert_close(found.loss, torch.stack(alone).mean())
        torch.testing.assert_close(found.logits, model(sounds))
        assert made(sounds).loss is None
        assert isinstance(made(sounds, return_dict=False), tuple)


@pytest.mark.parametrize("pointwise", [True, False])
def test_a_shipped_ranker_scores_more_than_one_head_as_torch_does(tmp_path: Path, pointwise: bool) -> None:
    """Heads of a size other than 1, several of them, and a history that candidates see whole."""
    attention = Attention(heads=3, kv_heads=3, head_size=8, rope=False, relative_buckets=6, pointwise=pointwise)
    arch = ArchSpec(
        stem=RankingStem(items=30, history=5, candidates=4, tags=9, bag=2),
        head=Scores(),
        d_model=16,
        layers=(Layer(attention=attention, ffn=None if pointwise else FeedForward(width=20)),) * 2,
        max_tokens=6,
        positions="none",
    )
    model, (requests,) = form_suite.shaken(arch, seed=0), form_suite.inputs_of(arch, batch=3)
    made = shipped(arch, model, tmp_path, "modeling_chipwise_ranking", "ChipwiseRanker")
    with torch.no_grad():
        wanted = model(requests)
        assert wanted.shape == (3, 4)
        torch.testing.assert_close(made(requests).scores, wanted, atol=1e-4, rtol=1e-4)
        (scores,) = made(requests, return_dict=False)
        torch.testing.assert_close(scores, wanted, atol=1e-4, rtol=1e-4)


def told(nodes: Any, **of: Any) -> dict[str, Any]:
    """Metadata of a file about a model's requests."""
    return dict(nodes.metadata(SimpleNamespace(**of)))


def test_what_files_of_other_kinds_say_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summaries mention a denoiser's steps only if they are unusual, and words only for classifiers that read text."""
    frames = SimpleNamespace(shape=(80, 96), seconds=0.96)
    sound = SimpleNamespace(stem_as=lambda kind: frames)
    assert told(sound_graph.NODES, arch=sound) == {
        "encodes": "characters", "image": [80, 96], "seconds": 0.96, "kv": [],
    }  # fmt: skip
    patches = ImageStem(image_size=8, patch=4, prefix_tokens=0)
    image = SimpleNamespace(stem=patches)
    assert told(image_graph.NODES, arch=image) == {"encodes": "classes", "image": [3, 8, 8], "kv": []}
    words, projector = Question(words=9, tokens=7), Projector(widths=(8, 8))
    image.stem = QuestionStem(image=patches, question=words, projector=projector)
    assert told(image_graph.NODES, arch=image)["question"] == 7
    assert told(encoder_graph.NODES, output="mean", padded=True) == {"encodes": "mean", "padded": True, "kv": []}
    stem = RankingStem(items=24, tags=12, history=5, candidates=4, bag=3)
    assert told(ranking_graph.NODES, arch=SimpleNamespace(stem_as=lambda kind: stem)) == {
        "encodes": "scores",
        "request": {"history": 5, "candidates": 4, "items": 24, "tags": 12, "bag": 3},
        "kv": [],
    }
    usual = {"labels": 10, "steps": 4, "guided": False, "solver": "euler", "shift": 1.0}
    plain = {"encodes": "velocity", "image": [1, 8, 8], "kv": [], "labels": 10, "steps": 4, "told": ["time"]}
    drawn = SimpleNamespace(shape=(1, 8, 8))
    for changed, more in (
        ({}, {}),
        ({"guided": True, "guidance": 3.0}, {"guidance": 3.0}),
        ({"solver": "multistep"}, {"solver": "multistep"}),
        ({"shift": 3.0}, {"shift": 3.0}),
    ):
        denoiser = SimpleNamespace(**(usual | changed))
        monkeypatch.setattr(denoiser_graph, "parts_of", lambda arch, denoiser=denoiser: (drawn, denoiser))
        assert told(denoiser_graph.NODES, arch=None) == plain | more
