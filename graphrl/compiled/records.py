"""What graphs and problems look like in compiled code: rows of indices beside records, and numbers for names."""

import numpy as np

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
        by_key = np.argsort(keys, kind="stable")
        records[field] = begin + np.searchsorted(keys[by_key], np.arange(len(records)))
        rows.append(values[by_key].astype(np.uint32))
        begin += len(keys)
    return np.concatenate(rows)
