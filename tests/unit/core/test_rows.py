"""Distinct rows equal NumPy's, which compares whole rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from chipwise.core.rows import distinct_rows, new_rows

ROWS = arrays(
    np.int64, array_shapes(min_dims=2, max_dims=2, max_side=30), elements=st.sampled_from([0, 1, 2, 7, 300, 2**40])
)


@given(ROWS)
def test_distinct_rows_are_those_of_numpy(rows):
    found, first = distinct_rows(rows)
    expected, places = np.unique(rows, axis=0, return_index=True)
    assert found.tolist() == expected.tolist()
    assert first.tolist() == places.tolist()


@given(ROWS)
def test_rows_that_are_known_are_not_new(rows):
    known = rows[::2]
    found = new_rows(rows, known)
    left = {tuple(row) for row in rows.tolist()} - {tuple(row) for row in known.tolist()}
    assert [tuple(row) for row in found.tolist()] == sorted(left)


def test_no_rows():
    empty = np.zeros((0, 5), dtype=np.int64)
    assert distinct_rows(empty)[0].shape == (0, 5)
    assert new_rows(empty, empty).shape == (0, 5)
