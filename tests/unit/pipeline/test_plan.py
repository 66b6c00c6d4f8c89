import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.core.errors import SpecError
from chipwise.pipeline.halving import plan_rungs


@given(final_s=st.floats(2, 500), share=st.floats(1, 30))
def test_a_plan_keeps_its_budget_and_narrows(final_s, share) -> None:
    rungs = plan_rungs(training_s=final_s * share, final_s=final_s)
    spent = rungs[0].count * rungs[0].cpu_s
    spent += sum(b.count * (b.cpu_s - a.cpu_s) for a, b in itertools.pairwise(rungs))
    assert spent <= final_s * share * (1 + 1e-9)
    assert rungs[-1].cpu_s == pytest.approx(final_s)
    assert all(a.count > b.count and a.cpu_s < b.cpu_s for a, b in itertools.pairwise(rungs))


def test_a_budget_below_one_final_training_is_refused() -> None:
    with pytest.raises(SpecError, match="less than one final training"):
        plan_rungs(training_s=50, final_s=60)
