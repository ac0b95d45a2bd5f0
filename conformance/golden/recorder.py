"""Running one SDK call at a time and keeping the request that it sent.

Values that differ from run to run are replaced by a placeholder in angle brackets
(`VARYING_HEADERS` for headers, the `edit` argument of `record` for bodies). A header
that nobody listed is an error, so nothing is dropped by accident.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from capture import API, Captured, CaptureServer
from output import write_json

UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"

# Sent with every call; kept once, in `common_headers`.
COMMON_HEADERS = {
    "accept-encoding",
    "user-agent",
    "x-stainless-arch",
    "x-stainless-async",
    "x-stainless-os",
    "x-stainless-package-version",
    "x-stainless-runtime",
    "x-stainless-runtime-version",
    "x-stainless-retry-count",
    "x-api-key",
}
# Kept for each call.
CALL_HEADERS = {
    "accept",
    "content-encoding",
    "content-type",
    "x-idempotency-key",
    "x-sdk-method",
    "x-sdk-version",
    "x-stainless-raw-response",
    "x-stainless-read-timeout",
    "x-tinker-create-promise-roundtrip-time",
    "x-tinker-request-iteration",
    "x-tinker-request-type",
    "x-tinker-sampling-backpressure",
    "x-tinker-weights-access-token",
}
# Facts about the connection rather than the call.
CONNECTION_HEADERS = {"connection", "host"}

VARYING_HEADERS = {
    "x-idempotency-key": (re.compile(UUID4), "<uuid4>"),
    "x-stainless-arch": (re.compile(".+"), "<arch>"),
    "x-stainless-os": (re.compile(".+"), "<os>"),
    "x-stainless-runtime-version": (re.compile(".+"), "<python version>"),
    "x-tinker-create-promise-roundtrip-time": (re.compile(r"[\d.e-]+"), "<seconds>"),
}


@dataclass
class Recorder:
    server: CaptureServer
    vectors: dict[str, dict[str, Any]] = field(default_factory=dict)
    http: list[dict[str, Any]] = field(default_factory=list)
    common_headers: dict[str, str] = field(default_factory=dict)

    def record(
        self,
        operation: str,
        variant: str,
        path: str,
        call: Callable[[], Any],
        *,
        where: Callable[[Captured], bool] = lambda _: True,
        edit: Callable[[Any], Any] = lambda body: body,
    ) -> Captured:
        """Runs `call` and keeps the first request to `path` that it caused.

        A JSON body becomes a vector of its own; a request line with headers that no
        other variant has becomes an entry of `http/requests.json`.
        """
        request = self.run(path, call, where)
        if request.headers.get("content-type") == "application/json" and request.body:
            self.vectors[f"{operation}.{variant}"] = {
                "operation": operation,
                "variant": variant,
                "method": request.method,
                "path": request.target,
                "body": edit(request.json()),
            }
        self.note_http(operation, variant, request)
        return request

    def run(
        self,
        path: str,
        call: Callable[[], Any],
        where: Callable[[Captured], bool] = lambda _: True,
    ) -> Captured:
        """Runs `call`, waits for its result and returns the request to `path`."""
        # Request ids start from 1 again, so that a new case does not change the others.
        self.server.forget_promises()
        since = self.server.mark()
        outcome = call()
        if hasattr(outcome, "result"):
            outcome.result()
        return self.server.wait_for(lambda r: r.path == f"{API}/{path}" and where(r), since)

    def note_http(
        self, operation: str, variant: str, request: Captured, common: bool = True
    ) -> None:
        headers = {name: _stable(name, value) for name, value in request.headers.items()}
        length = headers.pop("content-length", None)
        unknown = headers.keys() - COMMON_HEADERS - CALL_HEADERS - CONNECTION_HEADERS
        if unknown:
            raise ValueError(f"{operation} sends headers that no list mentions: {unknown}")
        entry: dict[str, Any] = {
            "operation": operation,
            "variant": variant,
            "method": request.method,
            "target": request.target,
            "body": _body_kind(request),
            "headers": {name: headers[name] for name in headers if name in CALL_HEADERS},
        }
        if not request.body:
            entry["content_length"] = None if length is None else int(length)
        if common:
            self._note_common({name: headers.get(name, "") for name in COMMON_HEADERS})
        else:
            entry["without_common_headers"] = True
        # Variants of an operation mostly differ in the body alone; one line is enough.
        if not any(entry | {"variant": known["variant"]} == known for known in self.http):
            self.http.append(entry)

    def _note_common(self, headers: dict[str, str]) -> None:
        self.common_headers = self.common_headers or headers
        if headers != self.common_headers:
            raise ValueError(f"the common headers changed: {headers}")

    def write(self, folder: Path) -> None:
        for name, vector in self.vectors.items():
            write_json(folder / "requests" / f"{name}.json", vector)
        ordered = sorted(self.http, key=lambda entry: (entry["operation"], entry["variant"]))
        write_json(
            folder / "http" / "requests.json",
            {"common_headers": self.common_headers, "requests": ordered},
        )


def _stable(name: str, value: str) -> str:
    if name in VARYING_HEADERS:
        pattern, placeholder = VARYING_HEADERS[name]
        value, replaced = pattern.subn(placeholder, value)
        if replaced != 1:
            raise ValueError(f"header {name} has an unexpected form: {value}")
    return value


def _body_kind(request: Captured) -> str:
    if not request.body:
        return "none"
    return "protobuf" if "protobuf" in request.headers["content-type"] else "json"
