"""Makes the parquet files beside it: python generate.py (with pyarrow). Small pages, so that columns have several."""

import pathlib

import pyarrow
import pyarrow.parquet

HERE = pathlib.Path(__file__).parent
TEXTS = [f"Row {i} tells of the number {i * i}." for i in range(40)]
TEXTS[3], TEXTS[5] = "", None
IDS = [[i, i + 1, i + 2] for i in range(40)]
MESSAGES = [
    [{"role": "user", "content": f"What is {i}?", "name": None}, {"role": "assistant", "content": f"A number: {i}.", "name": "x"}]
    for i in range(40)
]
SMALL = {"data_page_size": 256, "row_group_size": 16}

text = pyarrow.table({"id": range(40), "text": TEXTS, "score": [i / 3 for i in range(40)]})
for codec in ("none", "snappy", "gzip", "zstd", "brotli"):
    pyarrow.parquet.write_table(text, HERE / f"text_{codec}.parquet", compression=codec, **SMALL)
pyarrow.parquet.write_table(text, HERE / "text_v2.parquet", compression="zstd", data_page_version="2.0", use_dictionary=False, **SMALL)
pyarrow.parquet.write_table(
    text, HERE / "text_delta.parquet", use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}, **SMALL
)
messages = pyarrow.table({"messages": MESSAGES, "prompt": TEXTS})
pyarrow.parquet.write_table(messages, HERE / "messages.parquet", **SMALL)
pyarrow.parquet.write_table(pyarrow.table({"input_ids": IDS}), HERE / "tokens.parquet", **SMALL)
