"""The OpenAI and Anthropic endpoints, beside llama.cpp's server on the same GGUF file: first token, tokens a second, and what HTTP costs."""

import http.client
import json
import os
import random
import shutil
import socket
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from .compare import Metric, Side, alternate, compare, single
from .process import Background, Failed, Server, shown, status
from .progress import say
from .setup import QUICK, ROUNDS, SMOLLM, call

STREAMS, TOKENS, PROMPT = (4, 8, 32) if QUICK else (16, 64, 256)
OPEN = 50 if QUICK else 1000
CALLS = 20 if QUICK else 200
RANK = 8
TICK = os.sysconf("SC_CLK_TCK")
# Threads that draw tokens; all others read requests and write answers.
ENGINE_THREADS = ("tinkrs-engine", "tinkrs-worker")

FIRST = Metric("first_ms", "time to the first token", "ms", "wall")
RATE = Metric("rate", "tokens a second", "1/s", "wall", "higher")
CPU = Metric("cpu_ms", "CPU of the server for a token", "ms", "CPU")


def cpu_s(process):
    """Processor time of a process, all threads, those that ended too."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def http_cpu_s(process):
    """Processor time of the threads that do HTTP, and of all others."""
    http, engine = 0.0, 0.0
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            # In nanoseconds: ticks are too coarse for threads that do little.
            used = int((task / "schedstat").read_text().split()[0]) / 1e9
        except OSError:
            continue
        if name.startswith(ENGINE_THREADS):
            engine += used
        else:
            http += used
    return http, engine


class Stream:
    """A request whose answer is read as it comes."""

    def __init__(self, url, path, body):
        address = urlsplit(url)
        data = json.dumps(body | {"stream": True}).encode()
        head = (f"POST {path} HTTP/1.1\r\nhost: {address.netloc}\r\nauthorization: Bearer tml-bench\r\ncontent-type: application/json\r\n"
                f"content-length: {len(data)}\r\nconnection: close\r\n\r\n").encode()
        self.start, self.first, self.end, self.events = time.monotonic(), None, None, 0
        self.connection = socket.create_connection((address.hostname, address.port), 600)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection.sendall(head + data)

    def read(self):
        seen = b""
        with self.connection:
            while chunk := self.connection.recv(65536):
                seen = seen[-64:] + chunk if self.events else seen + chunk
                if not self.events and b" 200 " not in seen[:20] and len(seen) > 20:
                    raise Failed(f"the server answered {seen[:400]!r}")
                found = chunk.count(b"data: ")
                if found and self.first is None:
                    self.first = time.monotonic()
                self.events += found
        self.end = time.monotonic()
        return self


def run_streams(url, path, bodies):
    """Runs streams at the same time, to their ends."""
    streams, failures = [], []

    def one(body):
        try:
            streams.append(Stream(url, path, body).read())
        except (OSError, Failed) as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise Failed(f"a stream failed: {failures[0]}")
    return streams


class Ours:
    """`tinkrs serve` on a GGUF file, with adapters that were trained a step each."""

    name = "tinkrs serve"

    def __init__(self, stack, tools, scratch, gguf):
        self.command = [tools.programs["tinkrs"], "serve", "--addr", "127.0.0.1:0", "--model", f"bench={gguf}", "--data-dir", scratch / "data"]
        self.server = stack.enter_context(Server(self.command))
        self.url, self.process = self.server.url, self.server.process.pid
        self.adapters = []

    def body(self, tokens, count, adapter=None):
        model = "bench" if adapter is None else self.adapters[adapter]
        return {"model": model, "prompt": tokens, "max_tokens": count, "temperature": 0.8, "ignore_eos": True, "seed": 1}

    def post(self, name, body):
        request = urllib.request.Request(f"{self.url}/api/v1/{name}", json.dumps(body).encode(), {
            "content-type": "application/json", "x-api-key": "tml-bench"})
        while True:
            try:
                with urllib.request.urlopen(request, timeout=600) as answer:
                    return json.loads(answer.read())
            except urllib.error.HTTPError as error:
                if error.code != 408:
                    raise Failed(f"{name}: {error.code} {error.read()[:400]!r}") from None

    def result(self, promise):
        while True:
            result = self.post("retrieve_future", {"request_id": promise["request_id"]})
            if result.get("type") != "try_again":
                return result

    def train(self, count):
        """Makes adapters, each with a step of its own."""
        session = self.post("create_session", {"tags": [], "sdk_version": "0.36.0"})["session_id"]
        for number in range(count):
            lora = {"rank": RANK, "seed": number, "train_unembed": False}
            model = self.result(self.post("create_model", {"session_id": session, "model_seq_id": number, "base_model": "bench",
                                                           "lora_config": lora}))["model_id"]
            tokens = list(range(5, 21))
            datum = {"model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens}]}, "loss_fn_inputs": {
                "target_tokens": {"data": tokens, "dtype": "int64", "shape": [16]},
                "weights": {"data": [1.0] * 16, "dtype": "float32", "shape": [16]}}}
            self.post("forward_backward", {"model_id": model, "seq_id": 1, "forward_backward_input": {
                "data": [datum], "loss_fn": "cross_entropy"}})
            self.result(self.post("optim_step", {"model_id": model, "seq_id": 2, "adam_params": {"learning_rate": 1e-3}}))
            saved = self.result(self.post("save_weights_for_sampler", {"model_id": model, "seq_id": 3, "path": "bench"}))
            self.adapters.append(saved["path"])


class Theirs:
    """llama.cpp's server on the same file, with as many slots as streams."""

    name = "llama-server"

    def __init__(self, stack, tools, gguf, adapters=()):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        cores = os.cpu_count()
        self.command = [tools.llama, "-m", gguf, "--host", "127.0.0.1", "--port", port, "-t", cores, "-tb", cores, "-np", STREAMS,
                        "-c", STREAMS * (PROMPT + TOKENS + 64), "--no-webui"]
        if adapters:
            self.command += ["--lora", ",".join(map(str, adapters)), "--lora-init-without-apply"]
        program = stack.enter_context(Background(self.command))
        # It logs to stdout, too, and must not wait for anybody to read that.
        threading.Thread(target=lambda: shutil.copyfileobj(program.process.stdout, open(os.devnull, "w")), daemon=True).start()
        self.url, self.process, self.adapters = f"http://127.0.0.1:{port}", program.process.pid, adapters
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                if program.process.poll() is not None:
                    break
                time.sleep(0.2)
        program.errors.seek(0)
        raise Failed(f"llama-server does not start:\n{program.errors.read()[-2000:]}")

    def body(self, tokens, count, adapter=None):
        body = {"prompt": tokens, "max_tokens": count, "temperature": 0.8, "ignore_eos": True, "seed": 1, "cache_prompt": False}
        if adapter is not None:
            body["lora"] = [{"id": adapter, "scale": 1.0}]
        return body


def prompts(count, length, seed):
    """Prompts that have nothing in common, so that no cache helps."""
    draw = random.Random(seed)
    return [[draw.randrange(100, 40_000) for _ in range(length)] for _ in range(count)]


def side(server, streams, length, tokens, adapters=False):
    """A side whose round is some streams at once."""
    rounds = iter(range(1_000_000))

    def work():
        texts = prompts(streams, length, f"{next(rounds)} {streams} {length}")
        bodies = [server.body(text, tokens, number if adapters else None) for number, text in enumerate(texts)]
        before, start = cpu_s(server.process), time.monotonic()
        done = run_streams(server.url, "/v1/completions", bodies)
        total = streams * tokens
        return {"first_ms": 1000 * sum(stream.first - stream.start for stream in done) / streams,
                "rate": total / (max(stream.end for stream in done) - start),
                "cpu_ms": 1000 * (cpu_s(server.process) - before) / total}

    command = [word for word in server.command]
    return Side(server.name, shown(command), work)


def overhead(server):
    """What HTTP and the chat template cost of a chat, as a share of what the engine does."""
    question = "Tell me a long story about a bear who learns to play the violin. " * 4

    def work():
        body = {"model": "bench", "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": question}],
                "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0.8, "logprobs": True, "top_logprobs": 5}
        before = http_cpu_s(server.process)
        run_streams(server.url, "/v1/chat/completions", [body] * STREAMS)
        http, engine = (after - earlier for after, earlier in zip(http_cpu_s(server.process), before))
        return {"http_us": 1e6 * http / (STREAMS * TOKENS), "share": 100 * http / engine}

    it = Side(server.name, shown(server.command), work)
    (rounds,) = alternate("HTTP and template", [it], ROUNDS)
    what = f"{STREAMS} chat streams of {TOKENS} tokens with log-probabilities"
    return [single(what, Metric("http_us", "CPU of HTTP, template and JSON for a token", "µs", "CPU"), it, rounds),
            single(what, Metric("share", "that of what the engine takes", "%", "CPU"), it, rounds)]


def others(server):
    """The endpoints that no other side has: what HTTP costs of an answer, and how long requests take for which nothing is drawn."""
    said = [{"role": "user", "content": "Tell me a long story about a bear who learns to play the violin. " * 4}]
    chat = {"model": "bench", "temperature": 0.8}
    answers = {"/v1/responses": {"input": said, "max_output_tokens": TOKENS}, "/v1/messages": {"messages": said, "max_tokens": TOKENS}}
    calls = {"GET /v1/models": None, "GET /v1/models/bench": None, "POST /v1/messages/count_tokens": {"model": "bench", "messages": said}}
    rows = []
    for path, body in answers.items():
        def work(path=path, body=chat | body):
            before = http_cpu_s(server.process)
            run_streams(server.url, path, [body] * STREAMS)
            around, engine = (after - earlier for after, earlier in zip(http_cpu_s(server.process), before))
            return {"share": 100 * around / engine}

        it = Side(server.name, shown(server.command), work)
        (rounds,) = alternate(path, [it], ROUNDS)
        share = Metric("share", "CPU of HTTP, template and JSON as a part of the engine's", "%", "CPU")
        rows.append(single(f"{STREAMS} streams of `{path}`, up to {TOKENS} tokens each", share, it, rounds))
    for name, body in calls.items():
        def work(name=name, body=body):
            method, path = name.split()
            address = urlsplit(server.url)
            connection = http.client.HTTPConnection(address.hostname, address.port, timeout=600)
            start = time.monotonic()
            for _ in range(CALLS):
                data = None if body is None else json.dumps(body)
                connection.request(method, path, data, {"x-api-key": "tml-bench", "content-type": "application/json"})
                answer = connection.getresponse()
                seen = answer.read()
                if answer.status != 200:
                    raise Failed(f"{name}: {answer.status} {seen[:400]!r}")
            took = time.monotonic() - start
            connection.close()
            return {"call_ms": 1000 * took / CALLS}

        it = Side(server.name, shown(server.command), work)
        (rounds,) = alternate(name, [it], ROUNDS)
        rows.append(single(f"`{name}`, {CALLS} times one after the other", Metric("call_ms", "time of a request", "ms", "wall"), it, rounds))
    return rows


def open_streams(server):
    """Memory of streams that are open at the same time. Most wait for their turn, and all have been answered a head."""
    before = status(server.process, "VmRSS")
    bodies = [server.body(text, 4) for text in prompts(OPEN, 8, "open")]
    streams = [Stream(server.url, "/v1/completions", body) for body in bodies]
    for stream in streams:
        stream.connection.recv(12)
    opened = status(server.process, "VmRSS")
    for stream in streams:
        stream.connection.close()
    rounds = [{"stream_kib": (opened - before) / OPEN, "all_mib": (opened - before) / 1024}]
    it = Side(server.name, shown(server.command), None)
    return [single(f"{OPEN:,} open streams", Metric("all_mib", "memory of all", "MiB", "memory"), it, rounds),
            single(f"{OPEN:,} open streams", Metric("stream_kib", "of each", "KiB", "memory"), it, rounds)]


def run(tools):
    rows = []
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tinkrs-bench-")))
        say("writing the GGUF file that both sides serve")
        tinkrs = tools.programs["tinkrs"]
        call([tinkrs, "export", tools.models / SMOLLM, "--format", "gguf", "--quantize", "bf16", "--to", scratch / "gguf"])
        gguf = scratch / "gguf/model.gguf"
        ours = Ours(stack, tools, scratch, gguf)
        rows += overhead(ours)
        rows += others(ours)
        say(f"training {STREAMS} adapters")
        ours.train(STREAMS)
        with ExitStack() as other:
            theirs = Theirs(other, tools, gguf)
            both = [ours, theirs]
            what = f"{SMOLLM} in bf16"
            rows += compare(f"{what}, a prompt of {PROMPT} tokens", [side(server, 1, PROMPT, 1) for server in both], [FIRST, CPU], ROUNDS)
            for streams in (1, STREAMS):
                name = "1 stream" if streams == 1 else f"{streams} streams"
                sides = [side(server, streams, 16, TOKENS) for server in both]
                rows += compare(f"{what}, {name} of {TOKENS} tokens", sides, [RATE, CPU], ROUNDS)
        with ExitStack() as other:
            say("writing the adapters for llama.cpp")
            files = []
            for number, path in enumerate(ours.adapters):
                to = scratch / f"adapter-{number}"
                call([tinkrs, "export", path, "--format", "gguf-adapter", "--base", gguf, "--base-url", ours.url, "--to", to],
                     env={**os.environ, "TINKER_API_KEY": "tml-bench"})
                files.append(to / "adapter.gguf")
            theirs = Theirs(other, tools, gguf, files)
            sides = [side(server, STREAMS, 16, TOKENS, adapters=True) for server in (ours, theirs)]
            rows += compare(f"{what}, {STREAMS} streams of {TOKENS} tokens under {STREAMS} adapters", sides, [RATE, CPU], ROUNDS)
        rows += open_streams(ours)
    for row in rows:
        for part in row["sides"]:
            part["command"] = part["command"].replace(str(scratch), "'<scratch>'")
    return rows
