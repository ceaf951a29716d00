"""pyarrow writes Parquet files in every combination that gradtile reads, and `gradtile tokenize` reads them. Its tokens
(bytes, and for conversations the template plain) must be the rows' texts. Files that are not supported must be refused
in one line that names the row group and the column.

    python parquet_judge.py GRADTILE WORK_DIRECTORY
"""
import itertools
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

gradtile, work = sys.argv[1], Path(sys.argv[2])
ROWS = 300

MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string()), ("train", pa.bool_()), ("turn", pa.int32())])
ROLES = ["system", "user", "assistant", "tool"]


def word(draw):
    return "".join(draw.choice("abcdefghij \näß水🙂") for _ in range(draw.randrange(1, 40)))


def texts(draw):
    """Repeated and unique texts, empty ones, and one that is longer than a page."""
    some = [word(draw) for _ in range(20)]
    rows = [draw.choice(some) if draw.random() < 0.5 else word(draw) for _ in range(ROWS)]
    rows[7], rows[100], rows[200] = "", "", "long " * 3000
    return rows


def messages(draw):
    return [
        [
            {"role": draw.choice(ROLES), "content": word(draw), "train": draw.choice([None, True, False]), "turn": i}
            for i in range(draw.randrange(1, 5))
        ]
        for _ in range(ROWS)
    ]


def chat(rows):
    text = ""
    for conversation in rows:
        for message in conversation:
            text += f"\n{message['role'].capitalize()}: {message['content']}"
        # The user's header ends an answer.
        if conversation[-1]["role"] == "assistant":
            text += "\nUser:"
    return text


def text_case(draw):
    rows = texts(draw)
    return pa.table({"id": pa.array(range(ROWS)), "text": pa.array(rows)}), "".join(rows), {"text"}


def required_case(draw):
    rows = texts(draw)
    schema = pa.schema([pa.field("text", pa.string(), nullable=False)])
    return pa.table({"text": rows}, schema=schema), "".join(rows), {"text"}


def large_case(draw):
    rows = texts(draw)
    return pa.table({"text": pa.array(rows, pa.large_string())}), "".join(rows), {"text"}


def list_case(draw):
    rows = [[word(draw) for _ in range(draw.randrange(0, 4))] for _ in range(ROWS)]
    return pa.table({"text": pa.array(rows, pa.list_(pa.string()))}), "".join(itertools.chain(*rows)), {"text.list.element"}


def pair_case(draw):
    prompts, completions = texts(draw), texts(draw)
    expected = "".join(p + c for p, c in zip(prompts, completions))
    return pa.table({"completion": completions, "prompt": prompts}), expected, {"prompt", "completion"}


def messages_case(draw):
    rows = messages(draw)
    names = {f"messages.list.element.{name}" for name in ("role", "content")}
    return pa.table({"messages": pa.array(rows, pa.list_(MESSAGE))}), chat(rows), names


def sharegpt_case(draw):
    names = {"user": "human", "assistant": "gpt", "system": "system", "tool": "observation"}
    rows = messages(draw)
    renamed = [[{"from": names[m["role"]], "value": m["content"]} for m in c] for c in rows]
    kind = pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())]))
    columns = {f"conversations.list.element.{name}" for name in ("from", "value")}
    return pa.table({"conversations": pa.array(renamed, kind)}), chat(rows), columns


def tokenize(path, *flags):
    out = work / "out.bin"
    out.unlink(missing_ok=True)
    command = [gradtile, "tokenize", str(path), "--tokenizer", "bytes", "--format", "nanogpt", "--out", str(out)]
    run = subprocess.run([*command, *flags], capture_output=True, text=True)
    if run.returncode != 0:
        return None, run.stderr
    return out.read_bytes()[::2].decode(), ""


def judge_readable():
    cases = [text_case, required_case, large_case, list_case, pair_case, messages_case, sharegpt_case]
    codecs = ["none", "snappy", "gzip", "zstd"]
    encodings = [None, "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]  # None: dictionaries
    count = 0
    for case, codec, encoding in itertools.product(cases, codecs, encodings):
        draw = random.Random(count)
        table, expected, columns = case(draw)
        version = ["1.0", "2.0"][(count + count // 4) % 2]
        path = work / "file.parquet"
        options = {"use_dictionary": True} if encoding is None else {
            "use_dictionary": False, "column_encoding": {name: encoding for name in columns}}
        pq.write_table(table, path, compression=codec, data_page_version=version, row_group_size=draw.choice([64, 1000]),
                       data_page_size=draw.choice([256, 1 << 20]), write_page_checksum=draw.random() < 0.5,
                       dictionary_pagesize_limit=draw.choice([200, 1 << 20]),
                       use_compliant_nested_type=draw.random() < 0.7 or encoding is not None, **options)
        actual, error = tokenize(path)
        assert actual == expected, f"{case.__name__}, {codec}, {encoding}, version {version}: {error or 'other texts'}"
        count += 1
    return count


def refused(table, words, *flags, **options):
    path = work / "refused.parquet"
    pq.write_table(table, path, **options)
    _, error = tokenize(path, *flags)
    assert error.count("\n") == 1 and all(word in error for word in words), f"expected {words}: {error!r}"


def judge_refusals():
    table = pa.table({"text": ["a", "b"]})
    place = ["refused.parquet: row group 0, column 'text"]
    for codec in ("brotli", "lz4"):
        refused(table, [*place, "codec ", "expected UNCOMPRESSED, SNAPPY, GZIP or ZSTD"], compression=codec)
    refused(pa.table({"text": [1, 2]}), [*place, "type INT64; expected strings"])
    refused(pa.table({"text": [[["a"]]]}), [*place, "expected strings"])
    refused(pa.table({"text": [{"a": "b"}]}), [*place, "struct outside of a list"])
    calls = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(pa.string()))]))
    rows = [[{"role": "user", "content": "a", "tool_calls": ["b"]}]]
    refused(pa.table({"messages": pa.array(rows, calls)}),
            ["row group 0, column 'messages.list.element.tool_calls", "inside a struct"])
    refused(table, ["has no column 'body'", "it has: text"], "--text-column", "body")
    refused(pa.table({"text": ["a", None]}), ["row group 0, row 2: text: null; expected a text"])
    refused(pa.table({"other": ["a"]}), ["it has: other"])


class Keys(pe.KmsClient):
    """Keys for the test, wrapped by nothing."""

    def __init__(self, _):
        super().__init__()

    def wrap_key(self, key, _):
        return key

    def unwrap_key(self, key, _):
        return key


def judge_encryption():
    table = pa.table({"text": ["a", "b"], "id": [1, 2]})
    for plaintext_footer in (False, True):
        factory = pe.CryptoFactory(Keys)
        config = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["text"]}, plaintext_footer=plaintext_footer)
        properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
        path = work / "encrypted.parquet"
        with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
            writer.write_table(table)
        _, error = tokenize(path)
        word = "row group 0, column 'text': is encrypted" if plaintext_footer else "is an encrypted Parquet file"
        assert word in error and error.count("\n") == 1, error


count = judge_readable()
judge_refusals()
judge_encryption()
print(f"{count} files of pyarrow {pa.__version__} give their texts; unsupported files are refused by name")
