"""The field ``quality`` of a run file, and the meaning of old files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_run_spec_tasks import PLAIN

from chipwise.core.digest import plain
from chipwise.design.phases.halving import plan_finals
from chipwise.design.run.budget_spec import Allowance
from chipwise.design.run.spec import SHARED_SHARE, run_spec
from chipwise.errors import SpecError


def spec(**fields):
    return run_spec({**PLAIN, **fields}, file="toy.yaml")


def test_a_file_without_it_means_what_it_meant() -> None:
    assert spec().identity == spec(quality="auto").identity == spec(quality={"method": "auto"}).identity
    assert spec().quality.chosen == "short-training"
    assert spec().quality.shared_s(960.0) == 0.0
    for method in ("supernet", "proxy", "short-training"):
        assert spec(quality=method).identity != spec().identity


def test_a_strategy_and_the_law_do_not_both_choose() -> None:
    with pytest.raises(SpecError, match="`quality: proxy` ignores search"):
        spec(quality="proxy", search="random")
    assert spec(quality="supernet", search="random").search.strategy == "random"


def test_the_budget_is_that_of_shared_weights() -> None:
    found = spec(quality={"method": "supernet", "budget": "3 min"})
    assert found.quality.shared_s(960.0) == 180.0
    assert run_spec(plain(found), file="spec.json") == found
    assert spec(quality="supernet").quality.shared_s(960.0) == SHARED_SHARE * 960.0


@pytest.mark.parametrize(
    ("quality", "said"),
    [
        ("supernets", "did you mean 'supernet'"),
        ({"method": "proxy", "budget": "1 min"}, "quality.budget: only `method: supernet`"),
        ({"method": "supernet", "budget": "3"}, "quality.budget: .*no unit"),
        ({"method": "supernet", "budget": "0 s"}, "quality.budget: must be positive"),
        ({"methods": "proxy"}, "did you mean 'method'"),
    ],
)
def test_what_is_wrong_is_named(quality, said) -> None:
    with pytest.raises(SpecError, match=said):
        spec(quality=quality)


def test_models_with_different_norms_do_not_share_weights() -> None:
    for choice in ({"norm": ["rmsnorm", "layernorm"]}, {"norm_place": ["pre", "both"]}):
        space = PLAIN["space"] | choice
        assert spec(space=space).quality.chosen == "short-training"
        with pytest.raises(SpecError, match=r"space\.norm: models that share weights must all use one kind of norm"):
            spec(space=space, quality="supernet")


@given(final_s=st.floats(1, 500), share=st.floats(1, 30))
def test_a_proxy_run_trains_as_many_in_full_as_the_budget_holds(final_s, share) -> None:
    (rung,) = plan_finals(Allowance(unit="cpu", total=1e6, final=final_s, whole=True), final_s * share)
    assert rung.budget == final_s
    assert rung.count >= 1
    assert rung.count * final_s <= final_s * share * (1 + 1e-9) < (rung.count + 1.001) * final_s
