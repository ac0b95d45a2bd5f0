"""An HTTP server on 127.0.0.1 that records what an SDK sends and answers plausibly.

It uses only the standard library, so that the same file runs next to every SDK version.
Each request is recorded before it is answered. A submission is answered with a promise
(`request-1`, `request-2`, ...) and the promise is kept by a later `retrieve_future`.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable

API = "/api/v1"

# Operations that are answered with a promise, and the result each promise resolves to.
PROMISED_RESULTS: dict[str, Any] = {
    "create_custom_loss": {"loss_id": "loss-1"},
    "create_model": {"model_id": "session-1:train:0"},
    "forward": {"loss_fn_output_type": "scalar", "loss_fn_outputs": [], "metrics": {}},
    "forward_backward": {"loss_fn_output_type": "scalar", "loss_fn_outputs": [], "metrics": {}},
    "optim_step": {"metrics": None},
    "load_weights": {"path": "tinker://session-1:train:0/weights/step-1"},
    "save_weights": {"path": "tinker://session-1:train:0/weights/step-1"},
    "save_weights_external": {"path": "tinker://session-1:train:0/external_weights/step-1"},
    "save_weights_for_sampler": {"path": None, "sampling_session_id": "session-1:sample:0"},
    "asample": {"sequences": [{"stop_reason": "length", "tokens": [1], "logprobs": [-0.5]}]},
    "unload_model": {"model_id": "session-1:train:0"},
}


@dataclass(frozen=True)
class Captured:
    """One request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.split("?", 1)[0]

    @property
    def operation(self) -> str:
        return self.path.removeprefix(f"{API}/")

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """What the server sends back."""

    status: int = 200
    content_type: str = "application/json"
    body: bytes = b"{}"

    @classmethod
    def of(cls, value: Any, status: int = 200) -> Answer:
        return cls(status=status, body=json.dumps(value).encode())


@dataclass
class CaptureServer:
    """Start it with `with CaptureServer() as server`."""

    # Answers by operation (the path after /api/v1/): a JSON value, an `Answer`, or a
    # function of the request that returns either. They win over the built-in ones.
    answers: dict[str, Any] = field(default_factory=dict)
    # Results of promised operations, `bytes` for a protobuf result.
    results: dict[str, Any] = field(default_factory=lambda: dict(PROMISED_RESULTS))
    # Answers that the next calls of `retrieve_future` get before the real result.
    future_answers: deque[Answer] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._captured: list[Captured] = []
        self._promises: dict[str, str] = {}

    def __enter__(self) -> CaptureServer:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def mark(self) -> int:
        """The position in the record from which `wait_for` should look."""
        with self._changed:
            return len(self._captured)

    def wait_for(
        self, wanted: Callable[[Captured], bool], since: int = 0, timeout: float = 30.0
    ) -> Captured:
        """The first request after `since` that is wanted; it may still have to arrive."""
        found: list[Captured] = []

        def arrived() -> bool:
            found[:] = [request for request in self._captured[since:] if wanted(request)]
            return bool(found)

        with self._changed:
            if not self._changed.wait_for(arrived, timeout):
                raise TimeoutError("the SDK did not send the expected request")
        return found[0]

    def forget_promises(self) -> None:
        """Starts numbering request ids from 1 again."""
        with self._changed:
            self._promises.clear()

    def handle(self, request: Captured) -> Answer:
        with self._changed:
            self._captured.append(request)
            self._changed.notify_all()
            return self._answer(request)

    def _answer(self, request: Captured) -> Answer:
        scripted = self.answers.get(request.operation)
        if callable(scripted):
            scripted = scripted(request)
        if isinstance(scripted, Answer):
            return scripted
        if scripted is not None:
            return Answer.of(scripted)
        if request.operation == "retrieve_future":
            return self._resolve(request.json()["request_id"])
        if request.operation in self.results:
            return self._promise(request)
        return Answer.of({})

    def _promise(self, request: Captured) -> Answer:
        request_id = f"request-{len(self._promises) + 1}"
        self._promises[request_id] = request.operation
        promise: dict[str, Any] = {"request_id": request_id}
        if request.operation == "asample":
            samples = request.json().get("num_samples", 1)
            promise["sample_sequence_ids"] = [f"sequence-{i}" for i in range(samples)]
        return Answer.of(promise)

    def _resolve(self, request_id: str) -> Answer:
        if self.future_answers:
            return self.future_answers.popleft()
        result = self.results[self._promises[request_id]]
        if isinstance(result, bytes):
            return Answer(content_type="application/x-protobuf", body=result)
        return Answer.of(result)


def _handler(server: CaptureServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body leave in one packet; without this each answer waits for an ACK.
        wbufsize = -1

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = server.handle(Captured(self.command, self.path, headers, body))
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_POST = do_PUT = do_DELETE = _serve

        def log_message(self, *_: object) -> None:
            pass

    return Handler
