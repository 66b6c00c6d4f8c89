"""Tests that every runtime must pass: subclass :class:`BackendSuite`, and give it the runtime's name and a model.

If the runtime has an exporter (``deploy/export/exporters.py``), subclass :class:`ExportedSuite` instead. It needs a
design instead of a model file, and also compares the runtime's logits with those of PyTorch.

class TestMyRuntime(BackendSuite):
    runtime = "mine"

    @pytest.fixture
    def model(self, tmp_path):
        return write_my_model(tmp_path)  # room for at least 16 positions
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from chipwise.core.arrays import AnyArray
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.measure.harness import measure
from chipwise.deploy.runtimes import NEEDS, RUNTIMES, Runtime, Session
from chipwise.errors import MeasurementError, MissingExtra, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Workload
from chipwise.model.walk.module import build

PROMPT, CAPACITY = 5, 12


class BackendSuite:
    """Tests that a :class:`chipwise.deploy.runtimes.Runtime` and its sessions must pass."""

    runtime: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}
    tolerance: ClassVar[float] = 1e-4

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        """A small model file that the runtime can run."""
        raise NotImplementedError("override the fixture `model` so that it returns a model file")

    @pytest.fixture
    def opened(self, model: Path) -> Session:
        """Returns a session with ``model`` loaded."""
        return self.open(model)

    def open(
        self, model: Path, *, capacity: int = CAPACITY, batch: int = 1, options: dict[str, object] | None = None
    ) -> Session:
        """Loads ``model`` and opens a session for ``batch`` sequences."""
        made: Runtime = RUNTIMES.load(self.runtime)()
        return made.open(model, capacity=capacity, batch=batch, threads=1, options=options or self.options)

    def tokens(self, session: Session, count: int) -> Any:
        """Random tokens from a fixed seed, (1, count)."""
        return np.random.default_rng(0).integers(0, session.vocab_size, (1, count))

    def test_it_has_a_name_and_a_version(self) -> None:
        """The table of runtimes lists the runtime under its own name, and the runtime has a version."""
        made: Runtime = RUNTIMES.load(self.runtime)()
        assert made.name == self.runtime, (
            "the runtime's name must be the one under which the table of runtimes lists it"
        )
        assert made.version(), "version() must return the installed package's version"

    def test_logits_are_finite_numbers_over_the_vocabulary(self, opened: Session) -> None:
        """Prefill and decode return one row of finite FP32 logits per sequence."""
        for logits in (opened.prefill(self.tokens(opened, PROMPT)), opened.decode(self.tokens(opened, 1))):
            assert logits.shape == (1, opened.vocab_size), "return one row of logits per sequence, of the last position"
            assert logits.dtype == np.float32, "convert logits to float32"
            assert np.isfinite(logits).all(), "logits are NaN or infinite: check masks and the softmax"

    def test_decoding_is_prefilling_token_by_token(self, opened: Session) -> None:
        """Decoding tokens one at a time gives the same logits as a prompt of the same tokens."""
        tokens = self.tokens(opened, CAPACITY)
        opened.prefill(tokens[:, :PROMPT])
        stepwise = [np.array(opened.decode(tokens[:, i : i + 1])) for i in range(PROMPT, CAPACITY)]
        for i, logits in enumerate(stepwise, start=PROMPT):
            whole = opened.prefill(tokens[:, : i + 1])
            np.testing.assert_allclose(
                logits,
                whole,
                atol=self.tolerance,
                rtol=self.tolerance,
                err_msg="decode differs from prefill: check positions and what the cache keeps",
            )

    def test_a_new_prompt_forgets_the_old(self, opened: Session) -> None:
        """A prompt gives the same logits whatever prompt ran before it."""
        tokens = self.tokens(opened, PROMPT)
        first = np.array(opened.prefill(tokens))
        opened.decode(tokens[:, :1])
        opened.prefill(tokens[:, ::-1].copy())
        again = opened.prefill(tokens)
        np.testing.assert_array_equal(again, first, err_msg="prefill must clear the cache of the previous prompt")

    def test_the_last_token_matters(self, opened: Session) -> None:
        """A different last token gives different logits."""
        tokens = self.tokens(opened, PROMPT)
        first = np.array(opened.prefill(tokens))
        tokens[0, -1] = (tokens[0, -1] + 1) % opened.vocab_size
        changed = opened.prefill(tokens)
        assert not np.array_equal(changed, first), "logits ignore the last token: return those of the last position"

    def test_a_full_cache_is_an_error(self, opened: Session) -> None:
        """Decoding beyond the cache raises an error instead of returning wrong logits."""
        opened.prefill(self.tokens(opened, CAPACITY))
        with pytest.raises(MeasurementError):
            opened.decode(self.tokens(opened, 1))

    def test_what_is_no_model_is_refused(self, tmp_path: Path) -> None:
        """A missing file and a broken file raise errors."""
        broken = tmp_path / "broken"
        broken.write_bytes(b"\x00not a model")
        for path in (broken, tmp_path / "missing"):
            with pytest.raises(MeasurementError, match=path.name):
                self.open(path)

    def test_the_harness_measures_it(self, model: Path) -> None:
        """The harness measures the runtime in a new process and keeps every sample."""
        workload = Workload(prompt_tokens=PROMPT, new_tokens=CAPACITY - PROMPT)
        found = measure(
            model,
            workload,
            runtime=self.runtime,
            repeats=20,
            prefills=3,
            seconds=0.05,
            attempts=1,
            options=self.options,
        )
        assert len(found.tpot_s) >= 20
        assert min(found.tpot_s) > 0
        assert found.runtime == self.runtime
        assert found.peak_memory_bytes is None or found.peak_memory_bytes > model.stat().st_size


class ExportedSuite(BackendSuite):
    """:class:`BackendSuite` for runtimes with an exporter: a design is exported with random weights."""

    parity: ClassVar[float] = 1e-4  # largest error relative to torch, as a share of the logits' standard deviation
    design: ClassVar[Design]  # must have at least 16 positions

    @pytest.fixture
    def weights(self) -> dict[str, Any]:
        """Random weights in which no norm has its default of one, and no bias its default of zero."""
        model, generator = build(self.design.arch, seed=0), np.random.default_rng(0)
        found = {name: value.numpy().copy() for name, value in model.state_dict().items()}
        for name in (name for name, value in model.named_parameters() if value.ndim != 2):
            found[name] += 0.3 * generator.standard_normal(found[name].shape, np.float32)
        return found

    @pytest.fixture
    def model(self, tmp_path: Path, weights: dict[str, Any]) -> Path:
        """Returns the file of the design, exported for the runtime."""
        return export_for(self.runtime, self.design, tmp_path, weights=weights)

    def expected(self, weights: dict[str, Any], tokens: Any) -> Any:
        """PyTorch's logits with the same weights, at each position, (1, tokens, vocab)."""
        return torch_logits(self.design.arch, weights, tokens)

    def test_logits_are_those_of_torch(self, opened: Session, weights: dict[str, Any]) -> None:
        """Logits equal those of PyTorch in prefill and in each decode step."""
        tokens = self.tokens(opened, CAPACITY)
        wanted = self.expected(weights, tokens)
        found = [np.array(opened.prefill(tokens[:, :PROMPT]))]
        found += [np.array(opened.decode(tokens[:, i : i + 1])) for i in range(PROMPT, CAPACITY)]
        self._check_parity(np.stack(found, axis=1), wanted, PROMPT - 1)

    def test_sequences_of_a_batch_do_not_see_each_other(self, model: Path, weights: dict[str, Any]) -> None:
        """Each sequence of a batch gets the same logits as when it runs alone."""
        try:
            session = self.open(model, batch=2)
        except Unsupported as refusal:
            pytest.skip(str(refusal))
        tokens = np.random.default_rng(1).integers(0, session.vocab_size, (2, CAPACITY))
        wanted = self.expected(weights, tokens)
        session.prefill(tokens[:, :-1])
        self._check_parity(session.decode(tokens[:, -1:])[:, None], wanted, CAPACITY - 1)

    def _check_parity(self, found: AnyArray, wanted: AnyArray, first: int) -> None:
        """Compares logits with PyTorch's, (batch, positions, vocab).

        ``found`` has only the positions from ``first`` on, ``wanted`` has all positions.
        """
        share = np.abs(found - wanted[:, first:]).max() / wanted.std()
        assert share <= self.parity, f"logits differ from PyTorch's by {share:.2g} standard deviations"

    def test_more_positions_than_the_model_has_are_refused(self, model: Path) -> None:
        """A capacity above the model's number of positions is refused, and the message states this number."""
        most = self.design.arch.max_tokens
        with pytest.raises(MeasurementError, match=f"{most} positions"):
            self.open(model, capacity=most + 1)

    def test_unknown_options_are_refused(self, model: Path) -> None:
        """An unknown option is refused, and the message names it."""
        with pytest.raises(MeasurementError, match="colour"):
            self.open(model, options={"colour": "red"})

    def test_a_missing_package_names_its_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If the runtime's package is not installed, the error names the extra of chipwise to install."""
        needs, known = NEEDS[self.runtime], type(RUNTIMES.load(self.runtime)()).__module__
        monkeypatch.setitem(sys.modules, needs.module, None)
        monkeypatch.delitem(sys.modules, known)
        with pytest.raises(MissingExtra, match=rf"chipwise\[{needs.extra}\]"):
            RUNTIMES.load(self.runtime)


def torch_logits(arch: ArchSpec, weights: dict[str, Any], tokens: Any) -> Any:
    """Logits of each position (batch, tokens, vocab) that PyTorch computes in FP32."""
    import torch

    from chipwise.model.kinds.text.module import Transformer

    reference = Transformer(arch)
    reference.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
    with torch.no_grad():
        return reference.eval()(torch.from_numpy(tokens))[0].numpy()
