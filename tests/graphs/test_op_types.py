"""What networks see of op types: of any text, alike for names that are alike."""

import numpy as np

from graphrl.graphs.features import BUCKETS, TYPE_FEATURES, type_features
from graphrl.graphs.graph import ComputationGraph, Op


def rows(*types: str) -> np.ndarray:
    return type_features(ComputationGraph("types", tuple(Op(str(i), type, 1.0) for i, type in enumerate(types))))


def test_any_text_is_a_type_and_equal_texts_are_equal() -> None:
    features = rows("reduce_max", "", "x", "a type that nobody has seen", "reduce_max", "Réduction")
    assert features.shape == (6, len(TYPE_FEATURES))
    assert features.dtype == np.float32
    np.testing.assert_array_equal(features[0], features[4])
    np.testing.assert_allclose(np.linalg.norm(features[:, 2:], axis=1), [1, 0, 1, 1, 1, 1], rtol=1e-6)


def test_names_with_parts_in_common_are_close() -> None:
    names = rows("reduce_max", "reduce_sum", "dot_general")[:, -BUCKETS:]
    assert names[0] @ names[1] > 0.3 > abs(names[0] @ names[2])


def test_kinds_that_are_known_are_told() -> None:
    assert rows("add", "Transpose", "reduce_sum", "conv_general_dilated")[:, :2].tolist() == [
        [1, 0],
        [1, 0],
        [0, 1],
        [0, 0],
    ]
