"""What graphs and problems look like in compiled code: rows of indices beside records, and numbers for names."""

import numpy as np

from graphrl.compiled import late_entry

FREE, RENDEZVOUS, LINK = range(3)
TRANSFERS = {"free": FREE, "rendezvous": RENDEZVOUS, "link": LINK}


def set_rows(*groups: tuple[np.ndarray, str, np.ndarray, np.ndarray]) -> np.ndarray:
    """Rows of indices, one after another: `[x] uint32`.

    Args:
      *groups: records, one more than there are rows, the field of theirs that the begins of the rows are written into
        (a row ends where the next begins), the record `[k]` that an index belongs to, and the index `[k]`.
    """
    rows: list[np.ndarray] = []
    begin = 0
    for records, field, keys, values in groups:
        begins, row = rows_by(keys, values, len(records))
        records[field] = begin + begins[:-1]
        rows.append(row.astype(np.uint32))
        begin += len(keys)
    return np.concatenate(rows)


def rows_by(keys: np.ndarray, values: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Values by key, each row in the given order: where the rows begin, and the last ends, `[size + 1] int64`, and the
    values `[k] int64`. A counting sort: `np.argsort` takes ten times as long.

    Args:
      keys, values: `[k]` integers; keys from 0 to size - 1.
    """
    begins, rows = np.zeros(size + 1, np.int64), np.empty(len(keys), np.int64)
    _fill(keys.astype(np.int64), values.astype(np.int64), begins, rows)
    return begins, rows


@late_entry
def _fill(keys: np.ndarray, values: np.ndarray, begins: np.ndarray, rows: np.ndarray) -> None:
    """Writes both; `begins` is 0 before."""
    for k in range(len(keys)):
        begins[keys[k] + 1] += 1
    for key in range(1, len(begins)):
        begins[key] += begins[key - 1]
    for k in range(len(keys)):  # begins move to the ends of their rows
        rows[begins[keys[k]]] = values[k]
        begins[keys[k]] += 1
    for key in range(len(begins) - 1, 0, -1):
        begins[key] = begins[key - 1]
    begins[0] = 0
