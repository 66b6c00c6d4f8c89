"""Every strategy of the table keeps the contract."""

from __future__ import annotations

from chipwise.api.testing.strategy_suite import StrategySuite


class TestAuto(StrategySuite):
    name = "auto"


class TestRandom(StrategySuite):
    name = "random"


class TestEvolution(StrategySuite):
    name = "evolution"
    options = {"population": 10, "tournament": 4}  # noqa: RUF012


class TestGrid(StrategySuite):
    name = "grid"


class TestProxy(StrategySuite):
    name = "proxy"


class TestReinforce(StrategySuite):
    name = "reinforce"


class TestGradient(StrategySuite):
    name = "gradient"
    options = {"initial": 10}  # noqa: RUF012


class TestHalving(StrategySuite):
    name = "halving"


class TestAsha(StrategySuite):
    name = "asha"


class TestTpe(StrategySuite):
    name = "tpe"


class TestGp(StrategySuite):
    name = "gp"
    options = {"initial": 37}  # noqa: RUF012
