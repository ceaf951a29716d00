"""Makes tests/reference/parquet: small Parquet files of every kind that gradtile reads.

usage: make_parquet_reference.py    (tested with pyarrow 26.0.1)
"""
import itertools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).resolve().parent / "parquet"
TEXTS = [f"text {i} {'again ' * (i % 3)}" for i in range(9)] + ["", "ä\n水"]
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string()), ("train", pa.bool_())])
CONVERSATIONS = [[{"role": "user", "content": f"question {i}", "train": None},
                  {"role": "assistant", "content": f"answer {i % 2}", "train": i != 3}] for i in range(5)]


def write(name, table, **options):
    pq.write_table(table, FOLDER / f"{name}.parquet", store_schema=False, write_statistics=False, **options)


FOLDER.mkdir(exist_ok=True)
texts = pa.table({"id": list(range(len(TEXTS))), "text": TEXTS})
for codec, version in itertools.product(("none", "snappy", "gzip", "zstd"), ("1.0", "2.0")):
    write(f"text_{codec}_v{version[0]}", texts, compression=codec, data_page_version=version, row_group_size=6,
          write_page_checksum=True)
for encoding in ("PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"):
    write(f"text_{encoding.lower()}", texts, compression="none", use_dictionary=False, column_encoding={"text": encoding},
          data_page_version="2.0", data_page_size=32)
messages = pa.table({"messages": pa.array(CONVERSATIONS, pa.list_(MESSAGE))})
write("messages_v1", messages, compression="snappy", use_compliant_nested_type=False)
write("messages_v2", messages, compression="none", data_page_version="2.0", row_group_size=2)
write("list", pa.table({"text": pa.array([["a", "b"], [], ["", "c"]], pa.list_(pa.string()))}), compression="none")
write("pairs", pa.table({"prompt": ["1 + 1 = ", "2 + 2 = "], "completion": ["2", "4"]}), compression="none")
write("none", pa.table({"text": pa.array([], pa.string())}), compression="snappy")
