"""PyTorch modules of users: named or given, exported as they compute, and one line for each wrong one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from torch import nn  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import chipwise  # noqa: E402
from chipwise.core.python_files import is_name, named_object  # noqa: E402
from chipwise.deploy.graphs.modules import on_disk  # noqa: E402
from chipwise.deploy.graphs.torch_export import export_module  # noqa: E402
from chipwise.errors import ChipwiseError, InputError  # noqa: E402
from chipwise.model.graphs import read_graph  # noqa: E402

NETS = """
from __future__ import annotations
import dataclasses
import torch
from torch import nn

@dataclasses.dataclass
class Config:
    width: int = 8

class Net(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, config.width, 3), nn.Linear(config.width, 10)
    def forward(self, x, scale=1, mask=None):
        return self.head(self.stem(x).mean((-1, -2))) * scale

class Branches(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x

class Shapes(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] > 3 else x

class Undefined(nn.Module):
    def forward(self, x):
        return (x - x) / (x - x)

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 2)
    def forward(self, x):
        return self.head(self.table(x).mean(1))

class Decomposed(nn.Module):
    def forward(self, x):
        return torch.linalg.svd(x)[0]

def build():
    return Net(Config())

def three():
    return 3

def fails():
    raise RuntimeError("no weights here")

net = build()
"""


class Parts(nn.Module):
    """Takes nested inputs, returns a table with something that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(6, 8)

    def forward(self, pair: dict[str, torch.Tensor], times: int = 1) -> dict[str, object]:
        """The sum of two products."""
        return {"y": times * self.first(pair["a"]) + self.second(pair["b"]), "cache": None}


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's file, in the current folder."""
    (tmp_path / "own_nets.py").write_text(NETS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_nets", raising=False)
    return "own_nets.py"


def test_names_of_objects_are_told_from_names_of_models() -> None:
    assert all(map(is_name, ("torchvision.models:resnet18", "nets.py:build", "a/b/nets.py:Net.tiny")))
    assert not any(map(is_name, ("gpt2", "llama3:8b", "a/b:c", "model.onnx", "C:\\model.onnx", "x:", ":y")))
    assert not any(is_name(each.name) for each in chipwise.models())


def test_a_named_function_a_class_a_module_and_a_package_are_explained_alike(nets: str) -> None:
    found = chipwise.explain(f"{nets}:build", device="l4", shapes={"x": (1, 3, 12, 12)})
    assert found.estimate.model == "own_nets.py:build"
    assert found.flops > 2 * 100 * 8 * 27 + 2 * 8 * 10  # a convolution at 10 x 10 places, a linear layer
    for other in (f"{nets}:net", "own_nets:build"):
        assert chipwise.explain(other, device="l4", shapes={"x": (1, 3, 12, 12)}).flops == found.flops
    assert {"stem", "head"} < set(found.modules)
    assert named_object("own_nets:net") is sys.modules["own_nets"].net


def test_a_module_gives_what_its_file_gives(nets: str, tmp_path: Path) -> None:
    net = named_object(f"{nets}:net")
    assert isinstance(net, nn.Module)
    x = torch.randn(1, 3, 12, 12)
    export_module(net, (x,), tmp_path / "net.onnx")
    from_file = chipwise.estimate(tmp_path / "net.onnx", device="l4", shapes={})
    assert chipwise.estimate(net, inputs=(x,), device="l4").latency_s == from_file.latency_s
    assert chipwise.estimate(net, inputs={"x": x}, device="l4").latency_s == from_file.latency_s
    table = chipwise.estimate(net, shapes={"x": (1, 3, 12, 12)}, devices=["l4", "h100-sxm"])
    assert {each.model for each in table} == {"Net"}


def test_nested_inputs_become_inputs_of_the_graph_and_numbers_become_part_of_it(tmp_path: Path) -> None:
    module, given = Parts().eval(), {"a": torch.randn(1, 4), "b": torch.randn(1, 6)}
    feed = export_module(module, {"times": 3, "pair": given}, tmp_path / "parts.onnx")
    assert list(feed) == ["pair_a", "pair_b"]
    (y,) = onnxruntime.InferenceSession(tmp_path / "parts.onnx").run(None, feed)
    wanted = module(given, 3)["y"]
    assert isinstance(wanted, torch.Tensor)
    assert torch.allclose(torch.from_numpy(y), wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["attention", "encoder", "lstm", "conv"])
def test_products_agree_with_torchs_counter(kind: str, tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    module, x = {
        "attention": (nn.Sequential(layer), torch.randn(1, 10, 32)),
        "encoder": (nn.TransformerEncoder(layer, 2), torch.randn(2, 7, 32)),
        "lstm": (nn.LSTM(64, 96, 2, batch_first=True), torch.randn(1, 9, 64)),
        "conv": (nn.Conv2d(4, 6, 3, groups=2), torch.randn(1, 4, 11, 11)),
    }[kind]
    module.eval()
    fast = torch.backends.mha.get_fastpath_enabled()
    export_module(module, (x,), tmp_path / "it.onnx")
    assert torch.backends.mha.get_fastpath_enabled() == fast
    torch.backends.mha.set_fastpath_enabled(False)
    plain = torch.backends.mkldnn.flags(enabled=False)  # the counter does not know oneDNN's operator for LSTMs
    with torch.no_grad(), plain, sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(x)
    torch.backends.mha.set_fastpath_enabled(fast)
    assert read_graph(tmp_path / "it.onnx").product_flops == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_training_modes_and_forward_stay_as_they_were(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4).eval()).train()
    module[2].eval()
    export_module(module, (torch.ones(1, 4),), tmp_path / "it.onnx")
    assert [each.training for each in module.modules()] == [True, True, True, False]
    assert "forward" not in vars(module)


def test_whole_numbers_are_made_for_embeddings_and_shapes_may_steer(nets: str) -> None:
    with on_disk(f"{nets}:Words", shapes={"x": (1, 6)}) as file:
        assert read_graph(file.path).inputs[0].dtype == "int64"
    with on_disk(f"{nets}:Shapes", shapes={"x": (5, 2)}) as file:
        assert file.path.is_file()
    assert not file.path.exists()
    chipwise.estimate(f"{nets}:build", device="l4", shapes={"x": (1, 3, 12, 12)}, values={"scale": 2})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "own_nets.py:Branches",
            r"own_nets.py:Branches \(own_nets.py:\d+\) branches on the values of its data.*Eq\(u0",
        ),
        ("own_nets.py:Undefined", "not finite"),
        ("own_nets.py:Decomposed", "linalg_svd"),
        ("own_nets.py:three", "is 3 (int), not a torch.nn.Module"),
        ("own_nets.py:Config", "not a torch.nn.Module"),
        ("own_nets.py:fails", "own_nets.py:48: RuntimeError: no weights here"),
        ("own_nets.py:Nets", "unknown name in own_nets.py 'Nets'; did you mean 'Net'"),
        ("no_nets.py:build", "no_nets.py: there is no such Python file"),
        ("no_such_package.nets:build", "no package or module no_such_package"),
        ("own_nets:build.x.y", "unknown name in own_nets"),
    ],
)
def test_each_wrong_module_gives_one_line(nets: str, name: str, said: str) -> None:
    with pytest.raises(ChipwiseError) as found:
        chipwise.explain(name, device="l4", shapes={"x": (1, 3, 12, 12)})
    text = str(found.value)
    assert "\n" not in text
    assert said in text or re.search(said, text), text


def test_missing_and_wrong_inputs_name_the_arguments(nets: str) -> None:
    with pytest.raises(InputError, match=r"forward\(x, scale=1, mask=None\) needs inputs.*--shape x="):
        chipwise.explain(f"{nets}:build", device="l4", shapes={})
    with pytest.raises(InputError, match=r"unknown argument of .* 'y'; known: mask, scale, x"):
        chipwise.explain(f"{nets}:build", device="l4", shapes={"y": (1,)})
    with pytest.raises(InputError, match=r"fails on x \(1, 4, 9, 9\): RuntimeError: .*channels"):
        chipwise.explain(f"{nets}:build", device="l4", shapes={"x": (1, 4, 9, 9)})
    with pytest.raises(InputError, match="not both"):
        chipwise.estimate(nn.Linear(2, 2), inputs=(torch.ones(1, 2),), shapes={"input": (1, 2)}, device="l4")
    with pytest.raises(InputError, match="none of its inputs is a tensor"):
        chipwise.estimate(nn.Linear(2, 2), inputs=(1,), device="l4")
    with pytest.raises(InputError, match=r"only apply to \.onnx files and PyTorch modules; leave them out for gpt2"):
        chipwise.explain("gpt2", inputs=(torch.ones(1, 2),))
    with pytest.raises(InputError, match="batch: does not apply to Linear"):
        chipwise.estimate(nn.Linear(2, 2), inputs=(torch.ones(1, 2),), device="l4", batch=4)


def test_another_device_is_named() -> None:
    with pytest.raises(InputError, match="device meta, without values"):
        chipwise.estimate(nn.Linear(2, 2, device="meta"), inputs=(torch.ones(1, 2),), device="l4")
    with pytest.raises(InputError, match="device meta"):
        chipwise.estimate(nn.Linear(2, 2), inputs=(torch.ones(1, 2, device="meta"),), device="l4")


def test_a_kit_holds_the_exported_module(nets: str, tmp_path: Path) -> None:
    packed = chipwise.kit(f"{nets}:build", shapes={"x": (1, 3, 12, 12)})
    assert packed.folder.name == "kit-own_nets.build"
    assert (packed.folder / "models" / "own_nets.build.onnx").is_file()
    assert packed.kit.models[0].inputs == {"x": (1, 3, 12, 12)}


def test_a_table_imports_nothing(nets: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f'model,device,shape\n{nets}:build,l4,"x=1,3,12,12"\n', encoding="utf-8")
    assert chipwise.estimate_table(tmp_path / "rows.csv", tmp_path / "out.csv") == (1, 1)
    assert "own_nets" not in sys.modules
