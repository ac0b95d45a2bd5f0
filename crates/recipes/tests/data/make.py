"""Writes the files here with the packages that people write such files with.

    pip install datasets==4.* pyarrow
    python crates/recipes/tests/data/make.py
"""

import pathlib
import shutil

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

here = pathlib.Path(__file__).parent
chat = lambda n: [
    {"role": "user", "content": f"What is {n} + 1?"},
    {"role": "assistant", "content": f"{n + 1}"},
]
rows = [{"id": n, "messages": chat(n), "source": "made up"} for n in range(5)]

# Nested columns, with each codec that is common.
table = pa.Table.from_pylist(rows)
for codec in ["snappy", "gzip", "zstd", "none"]:
    pq.write_table(table, here / f"chats-{codec}.parquet", compression=codec, row_group_size=2)

# Members that only some rows have are null in the others; other types of columns.
calls = [
    {
        "messages": [
            {"role": "user", "content": "Weather?", "tool_calls": None},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
                ],
            },
        ],
        "when": None,
    },
    {"messages": [{"role": "user", "content": "Hi", "tool_calls": None},
                  {"role": "assistant", "content": "Hello", "tool_calls": None}], "when": 1.5},
]
pq.write_table(pa.Table.from_pylist(calls), here / "calls.parquet", use_dictionary=True)

pairs = pa.table({
    "prompt": pa.array(["a", "b", "c"]).dictionary_encode(),
    "completion": pa.array(["x", "y", "z"], pa.large_string()),
    "picture": pa.array([b"\xff\x00", None, b"\xff"], pa.binary()),
    "when": pa.array([0, 1, 2], pa.timestamp("us")),
    "scores": pa.array([[0.5, 1.0], [], None], pa.list_(pa.float32())),
})
pq.write_table(pairs, here / "pairs.parquet")
with pa.OSFile(str(here / "pairs.arrow"), "wb") as sink, pa.ipc.new_file(sink, pairs.schema) as writer:
    writer.write_table(pairs)

# What `save_to_disk` leaves, and a folder as the Hub has it.
for name in ["saved", "splits", "hub"]:
    shutil.rmtree(here / name, ignore_errors=True)
dataset = datasets.Dataset.from_list(rows)
dataset.save_to_disk(here / "saved", num_shards=2)
datasets.DatasetDict({"train": dataset, "test": dataset.select([0])}).save_to_disk(here / "splits")
(here / "hub" / "data").mkdir(parents=True)
for shard in range(2):
    part = dataset.shard(2, shard, contiguous=True)
    part.to_parquet(here / "hub" / "data" / f"train-{shard:05}-of-00002.parquet")
dataset.select([0]).to_parquet(here / "hub" / "data" / "test-00000-of-00001.parquet")
print(datasets.__version__, pa.__version__)
