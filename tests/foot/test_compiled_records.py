"""Rows of indices by key, as compiled code reads them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphrl.compiled.structures import rows_by, set_rows


@given(keys=st.lists(st.integers(0, 5), max_size=30))
def test_rows_hold_the_values_of_each_key_in_the_given_order(keys: list[int]) -> None:
    values = np.arange(100, 100 + len(keys))[::-1]
    begins, rows = rows_by(np.array(keys, np.int32), values, 7)
    assert begins[0] == 0
    assert begins[-1] == len(keys) == len(rows)
    for key in range(7):
        expected = [value for each, value in zip(keys, values.tolist(), strict=True) if each == key]
        assert rows[begins[key] : begins[key + 1]].tolist() == expected


def test_groups_of_rows_stand_behind_one_another() -> None:
    records = np.zeros(3, [("first", np.int64), ("second", np.int64)])  # of two keys, and where the last rows end
    rows = set_rows(
        (records, "first", np.array([1, 0, 1]), np.array([7, 8, 9])), (records, "second", np.array([1]), np.array([5]))
    )
    assert rows.tolist() == [8, 7, 9, 5]
    assert records["first"].tolist() == [0, 1, 3]
    assert records["second"].tolist() == [3, 3, 4]
