"""Numbers for keys, by a table and by sorting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrl.graphs.topology import numbered


@pytest.mark.parametrize("sparse", [False, True])
@given(keys=st.lists(st.integers(0, 9), max_size=30))
def test_keys_are_numbered_as_numpy_does(sparse: bool, keys: list[int]) -> None:
    array = np.array(keys, np.int64)
    wanted = np.unique(array, return_index=True, return_inverse=True)
    size = 1000 if sparse else int(array.max(initial=-1)) + 1
    for ours, theirs in zip(numbered(array, size), wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)
