"""Filter fields as columns: how the fields of many messages are encoded, and their layout in memory.

A column is one field key and one type: exact number, approximate number, boolean, or string (codes into a dictionary of
distinct strings, in the order in which they first occur, which is log order). A key whose values have several types has
a column for each; a message has at most one of them.

- `batch_columns`: the bytes, made once by the node that receives a batch, and read by every other member without
  touching single messages.
- `block_columns`: the columns of a whole block of a queue, filled from batches.

Both provide `row(i)`: the fields of one message as a mapping that looks up only the requested field.
"""

from __future__ import annotations

from quorum_selectors.batch_columns import BatchColumns, Row, decode, encode, encode_shared, estimate_size
from quorum_selectors.block_columns import BLOCK_SIZE, MAX_DENSE_COLUMNS, BlockColumns

__all__ = [
    "BLOCK_SIZE",
    "MAX_DENSE_COLUMNS",
    "BatchColumns",
    "BlockColumns",
    "Row",
    "decode",
    "encode",
    "encode_shared",
    "estimate_size",
]
