"""What the cases need: a server of the binary under attack, callers with keys, and probes beside the attack."""

import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

NANO = "tinkrs/nano"  # the model that is inside the binary
KEY = "tml-attacked"


class Target:
    """The binary under attack, and all that was started with it. Ends everything when its block ends."""

    def __init__(self, binary):
        self.binary, self.servers = str(binary), []
        self.folder = tempfile.TemporaryDirectory(prefix="tinkrs-attack-")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.kill()
        self.folder.cleanup()

    def path(self, name):
        """A path inside this case's own folder."""
        return Path(self.folder.name) / name

    def serve(self, *options, data="data", address_space=None, env=None):
        """Starts a server on a data folder of this case. `address_space` limits its memory, in bytes."""
        server = Server(self, options, self.path(data), address_space, env or {})
        self.servers.append(server)
        return server

    def has_option(self, name, command="serve"):
        """Whether a command has an option: an older binary may not."""
        shown = subprocess.run([self.binary, command, "--help"], capture_output=True, text=True, timeout=20)
        return name in shown.stdout

    def tinkrs(self, *arguments, timeout=60, env=None):
        """Runs a command to its end. Returns its exit code (None if it took too long) and all that it printed."""
        try:
            done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                                  env=environment(env or {}), stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired as late:
            return None, "".join((part or b"").decode(errors="replace") for part in (late.stdout, late.stderr))
        return done.returncode, done.stdout + done.stderr

    def logs(self):
        return "\n".join(server.log() for server in self.servers)


def environment(more):
    """Ours, without keys, servers and proxies."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith("TINKER_") and not name.lower().endswith("_proxy")}
    return {**kept, "TINKER_TELEMETRY": "0", "NO_COLOR": "1", **more}


class Server:
    """`tinkrs serve` on a free port of 127.0.0.1."""

    def __init__(self, target, options, data, address_space, env):
        self.data, self.log_file = Path(data), target.path(f"log-{len(target.servers)}")
        self.command = [target.binary, "serve", "--addr", "127.0.0.1:0", "--data-dir", str(data), *map(str, options)]

        def limit():
            if address_space:
                resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

        with open(self.log_file, "w") as log:
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(env),
                                            preexec_fn=limit)
        watch = threading.Timer(60, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        self.is_listening = line.startswith("listening on ")
        self.url = line.strip().removeprefix("listening on ")
        self.address = (urlsplit(self.url).hostname, urlsplit(self.url).port) if self.is_listening else None
        if not self.is_listening:
            self.process.wait(20)

    def api(self, key=KEY):
        return Api(self.address, key)

    def log(self):
        return self.log_file.read_text(errors="replace")

    def is_alive(self):
        return self.process.poll() is None

    def kill(self):
        """Like `kill -9`, at once."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Like Ctrl-C, to its end."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def memory_mib(self, name="VmHWM"):
        """A number of /proc/PID/status: VmHWM is the most it ever had, VmRSS what it has."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def connect(self, timeout=10):
        return socket.create_connection(self.address, timeout)


class Refused(Exception):
    """A status that is not 200."""

    def __init__(self, status, body):
        super().__init__(f"{status} {body[:200]!r}")
        self.status, self.body = status, body


class Api:
    """Calls of the Tinker API with a key, one connection each."""

    def __init__(self, address, key):
        self.address, self.key = address, key

    def send(self, method, path, body=None, headers=None, timeout=60):
        """Sends a request. Returns status and body."""
        connection = http.client.HTTPConnection(*self.address, timeout=timeout)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            sent = {"content-type": "application/json", "x-api-key": self.key, **(headers or {})}
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def post(self, name, body, timeout=60):
        """Calls an operation of the API by its name, and returns its JSON."""
        status, answer = self.send("POST", f"/api/v1/{name}", body, timeout=timeout)
        if status != 200:
            raise Refused(status, answer)
        return json.loads(answer)

    def result(self, promise, timeout=60):
        """Waits for the result of a promise. A failed operation is a JSON object with `error`."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            status, answer = self.send("POST", "/api/v1/retrieve_future", {"request_id": promise["request_id"]})
            if status == 408:
                continue
            if status != 200:
                raise Refused(status, answer)
            try:
                answer = json.loads(answer)
            except ValueError:
                return {"protobuf": answer}
            if answer.get("type") != "try_again":
                return answer
        raise TimeoutError(f"no result within {timeout} s")

    def session(self):
        return self.post("create_session", {"tags": [], "user_metadata": None, "sdk_version": "0.36.0"})["session_id"]

    def model(self, session, rank=8, seq_id=0, timeout=60):
        """Creates a model on `tinkrs/nano`. Returns its id."""
        promise = self.post("create_model", {"session_id": session, "model_seq_id": seq_id, "base_model": NANO,
                                             "lora_config": {"rank": rank}})
        made = self.result(promise, timeout)
        if "model_id" not in made:
            raise Refused(200, json.dumps(made).encode())
        return made["model_id"]

    def forward_backward(self, model, seq_id, datums=1, length=8):
        """Submits a pass. Returns its promise."""
        tokens = list(range(1, length + 1))
        datum = {"model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens}]},
                 "loss_fn_inputs": {"target_tokens": {"data": tokens, "dtype": "int64", "shape": [length]},
                                    "weights": {"data": [1.0] * length, "dtype": "float32", "shape": [length]}}}
        return self.post("forward_backward", {"model_id": model, "seq_id": seq_id,
                         "forward_backward_input": {"data": [datum] * datums, "loss_fn": "cross_entropy"}})

    def optim_step(self, model, seq_id, learning_rate=1e-3):
        return self.post("optim_step", {"model_id": model, "seq_id": seq_id, "adam_params": {"learning_rate": learning_rate}})

    def sample(self, tokens, sampler=None, max_tokens=4, seq_id=None):
        """Submits a request for samples of a sampler, or of the base model. Returns its promise."""
        body = {"prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens}]}, "num_samples": 1,
                "sampling_params": {"max_tokens": max_tokens, "seed": 1, "temperature": 1.0}}
        body |= {"sampling_session_id": sampler, "seq_id": seq_id} if sampler else {"base_model": NANO}
        return self.post("asample", body)


class Probe(threading.Thread):
    """Does something again and again beside an attack, and keeps how long each took, in seconds."""

    def __init__(self, call, pause=0.02):
        super().__init__(daemon=True)
        self.call, self.pause, self.times, self.failures, self.ended = call, pause, [], [], threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join(30)

    def run(self):
        while not self.ended.wait(self.pause):
            start = time.monotonic()
            try:
                self.call()
            except Exception as error:
                self.failures.append(repr(error))
            self.times.append(time.monotonic() - start)

    def percentile(self, share):
        """The time in seconds that `share` (0 to 1) of the calls kept; infinite without any call."""
        times = sorted(self.times)
        return times[min(len(times) - 1, int(share * len(times)))] if times else float("inf")


def healthz(server):
    """A probe of the server's health, without a key."""
    def call():
        status, body = server.api(key="").send("GET", "/api/v1/healthz", timeout=20)
        if status != 200:
            raise Refused(status, body)
    return Probe(call)
