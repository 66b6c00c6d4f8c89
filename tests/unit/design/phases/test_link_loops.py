"""A link that points at itself is named, wherever a model's folder is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chipwise import api
from chipwise.errors import ChipwiseError


@pytest.mark.parametrize("call", [api.shrink, api.estimate, api.kit, api.report, api.evaluate, api.train])
def test_a_link_that_points_at_itself(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "d.txt").write_text("text")
    more: dict[str, object] = {"data": ["d.txt"]} if call in (api.shrink, api.train) else {}
    more |= {"steps": 1} if call is api.train else {"task": "chapters"} if call is api.evaluate else {}
    with pytest.raises(ChipwiseError, match="loop"):
        call("loop", **more)
