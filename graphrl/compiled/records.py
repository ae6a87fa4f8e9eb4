"""What graphs and problems look like in compiled code: rows of indices beside records, and numbers for names."""

import numpy as np

FREE, RENDEZVOUS, LINK = range(3)
TRANSFERS = {"free": FREE, "rendezvous": RENDEZVOUS, "link": LINK}


def set_rows(*groups: tuple[np.ndarray, str, np.ndarray, np.ndarray]) -> np.ndarray:
    """Rows of indices, one after another: `[x] int32`.

    Args:
      *groups: records, the field of theirs that the begin of each one's row is written into (it ends where that of the
        next record begins, so there is one record more), the record `[k]` that an index belongs to, and the index `[k]`.
    """
    rows: list[np.ndarray] = []
    begin = 0
    for records, field, keys, values in groups:
        by_key = np.argsort(keys, kind="stable")
        records[field] = begin + np.searchsorted(keys[by_key], np.arange(len(records)))
        rows.append(values[by_key].astype(np.int32))
        begin += len(keys)
    return np.concatenate(rows)
