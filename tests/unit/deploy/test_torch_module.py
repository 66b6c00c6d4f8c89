import torch

from chipwise.deploy.torch import build
from chipwise.spec import uniform


def test_rotary_tables_are_kept_for_each_device() -> None:
    model = build(uniform(vocab_size=20, d_model=8, depth=1, heads=2, kv_heads=1, ffn_width=8), seed=0)
    devices = [torch.device(name) for name in ("cpu", "meta", "cpu")]
    tables = [model._rotary(4, device) for device in devices]
    assert [[table.device for table in pair] for pair in tables] == [[device] * 2 for device in devices]
    assert tables[0] is tables[2]
