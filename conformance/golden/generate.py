"""Writes the golden vectors of the SDK version in this environment.

    python generate.py <folder>

Run it through `./check`, which makes the environment first.
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import clients
import proto_vectors
import requests_rest
import requests_sampling
import requests_service
import requests_telemetry
import requests_training
import responses
from capture import CaptureServer
from recorder import Recorder


def main(folder: Path) -> None:
    clients.isolate_environment()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with CaptureServer() as server:
        recorder, made = Recorder(server), clients.Clients(server)
        for group in (
            requests_service,
            requests_training,
            requests_sampling,
            requests_rest,
            requests_telemetry,
        ):
            group.record(recorder, made)
    recorder.write(folder)
    proto_vectors.write(folder / "proto")
    responses.write(folder / "responses")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
