"""Prints the rows of offline runs of Weights & Biases as JSON lines, read by the package's own reader.

usage: wandb_rows.py FOLDER        (needs wandb 0.22.3, the last release here whose reader is in Python)
"""

import json
import pathlib
import sys

from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.internal.datastore import DataStore

for path in sorted(pathlib.Path(sys.argv[1]).glob("offline-run-*/run-*.wandb")):
    file = DataStore()
    file.open_for_scan(str(path))
    while (data := file.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            row = {"project": record.run.project, "id": record.run.run_id}
        elif kind == "history":
            row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        else:
            continue
        print(json.dumps({"kind": kind, **row}))
