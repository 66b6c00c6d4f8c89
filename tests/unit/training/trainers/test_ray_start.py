"""A Ray that does not start, or does not answer, is one clear line."""

from __future__ import annotations

import pytest

from chipwise.api.testing.trainer_suite import toy_job
from chipwise.errors import Unsupported
from chipwise.training.trainers import ray_cluster
from chipwise.training.trainers.protocol import Setup
from chipwise.training.trainers.ray_cluster import RayTrainer

ray = pytest.importorskip("ray", reason="needs the extra ray")


@pytest.mark.parametrize("error", [Exception("the node\ntimed out"), ConnectionError("the node\ntimed out")])
def test_it_says_so(monkeypatch, tmp_path, error) -> None:
    def refuse(**options) -> None:
        raise error

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray_cluster, "_require_answer", lambda on: None)  # nothing listens in a test
    with pytest.raises(Unsupported, match=r"no Ray cluster answers at ray://head:10001 \(the node timed out\)"):
        RayTrainer(Setup(on="ray://head:10001", folder=tmp_path))
    trainer = RayTrainer(Setup(on="ray", folder=tmp_path))  # nothing is started before the first job
    with pytest.raises(Unsupported, match=r"Ray does not start here \(the node timed out\)"):
        list(trainer.run([toy_job(tmp_path)]))


def test_a_start_that_fails_once_is_tried_again_and_no_other_ray_is_joined(monkeypatch, tmp_path) -> None:
    starts = []

    def start(**options) -> None:
        starts.append(options["address"])
        if len(starts) == 1:
            raise ConnectionError("a port was taken")
        raise KeyboardInterrupt

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", start)
    with pytest.raises(KeyboardInterrupt):
        list(RayTrainer(Setup(on="ray", folder=tmp_path)).run([toy_job(tmp_path)]))
    assert starts == ["local", "local"]
