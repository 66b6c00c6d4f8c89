import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.design.phases.halving import plan_rungs
from chipwise.design.run.budget_spec import Allowance
from chipwise.errors import SpecError


def cpu(final_s: float) -> Allowance:
    return Allowance(unit="cpu", total=1e6, final=final_s, whole=True)


@given(final_s=st.floats(2, 500), share=st.floats(1, 30))
def test_a_plan_keeps_its_budget_and_narrows(final_s, share) -> None:
    rungs = plan_rungs(cpu(final_s), final_s * share)
    spent = rungs[0].count * rungs[0].budget
    spent += sum(b.count * (b.budget - a.budget) for a, b in itertools.pairwise(rungs))
    assert spent <= final_s * share * (1 + 1e-9)
    assert rungs[-1].budget == pytest.approx(final_s)
    assert all(a.count > b.count and a.budget < b.budget for a, b in itertools.pairwise(rungs))


def test_a_budget_below_one_final_training_is_refused() -> None:
    with pytest.raises(SpecError, match="less than one final training"):
        plan_rungs(cpu(60), 50)
