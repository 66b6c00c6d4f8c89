from hypothesis import given
from hypothesis import strategies as st

from chipwise.core.page import figures
from chipwise.design.report import words
from chipwise.training.tasks.protocol import task_named

TEXT = words.Words(task_named("text"))


def test_what_nobody_knows_is_said_in_words():
    assert TEXT.show(None, "tpot_p50") == "unknown"
    assert TEXT.show(float("nan"), "loss") == "unknown"
    assert words.quantity(None, "energy") == "unknown"
    assert TEXT.show(None, "tpot_p50", missing=words.NOT_MEASURED) == "not measured"


def test_numbers_read_in_human_units():
    assert TEXT.show(0.00123, "tpot_p50") == "1.23 ms"
    assert TEXT.show(87_400_000, "peak_memory") == "87.4 MB"
    assert TEXT.show(2.0184, "loss") == "2.018"
    assert TEXT.span(1e-3, 8e-4, 1.2e-3, "tpot_p50") == "1 ms (0.8 to 1.2)"
    assert words.count(8_030_261_248) == "8,030,261,248"


def test_a_change_says_its_direction():
    assert words.change(90, 100) == "10 % lower"
    assert words.change(104.1, 100) == "4.1 % higher"
    assert words.change(100.1, 100) == "about the same"
    assert words.change(300, 100) == "3 times"
    assert words.signed(88, 100) == "−12.0 %"
    assert words.signed(1, 0) == "unknown"


def test_columns_carry_their_si_unit():
    assert [words.si_name(name) for name in ("tpot_p99", "peak_memory", "parameters")] == [
        "tpot_p99_s",
        "peak_memory_bytes",
        "parameters",
    ]


def test_long_times_tick_on_whole_minutes():
    axis = figures.axis([0, 700], "time", "", zero=True)
    assert axis["ticktext"] == ["0", "2 min", "4 min", "6 min", "8 min", "10 min", "12 min"]


@given(low=st.floats(1e-7, 1e4), factor=st.floats(1.001, 1e6), kind=st.sampled_from(["time", "bytes", "count"]))
def test_ticks_lie_on_the_axis_in_order_and_can_be_told_apart(low, factor, kind):
    for log in (True, False):
        axis = figures.axis([low, low * factor], kind, "", log=log)
        start, end = figures.span(axis)
        ticks = axis["tickvals"]
        assert ticks == sorted(ticks)
        assert len(ticks) <= 12
        assert all(start * 0.999999 <= tick <= end * 1.000001 or abs(tick) < 1e-12 for tick in ticks)
        if factor > 1.5:
            assert len(ticks) >= 2
            assert len(set(axis["ticktext"])) == len(ticks)


def test_an_axis_of_one_value_has_room_around_it():
    axis = figures.axis([3.0], "count", "")
    assert axis["range"][0] < 3.0 < axis["range"][1]
    assert axis["tickvals"]
