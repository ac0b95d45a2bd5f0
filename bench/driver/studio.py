"""The studio: how soon a folder of many runs is shown, and what looking at a run costs it.

One run is written through the server, step by step; the others are copies of its rows with other numbers.
"""

import http.client
import json
import math
import os
import select
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from .compare import Metric, Side, alternate, row, single
from .process import ROOT, Server, shown
from .progress import say
from .setup import QUICK, ROUNDS

KEY = "tml-bench"
RUNS, STEPS = (20, 300) if QUICK else (1_000, 10_000)
# Steps of a round of training, and its batch: sequences and their tokens.
ROUND, BATCH, LENGTH = (5, 4, 16) if QUICK else (20, 8, 32)
PAGES = 4
NAMES = ["loss", "loss_per_datum", "loss_sum", "tokens", "datums", "grad_norm", "learning_rate", "tokens_per_second",
         "forward_backward_ms", "optim_step_ms", "queue_ms"]


class Api:
    """A connection that stays open."""

    def __init__(self, url):
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)

    def ask(self, method, path, body=None, **headers):
        headers = {"X-API-Key": KEY, "Content-Type": "application/json", **headers}
        self.connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self.connection.getresponse()
        data = answer.read()
        if answer.status >= 400 and answer.status != 408:
            raise RuntimeError(f"{method} {path}: {answer.status} {data[:500]}")
        return answer.status, data

    def post(self, path, body):
        return json.loads(self.ask("POST", f"/api/v1{path}", body)[1])

    def wait(self, promise):
        while True:
            status, data = self.ask("POST", "/api/v1/retrieve_future", {"request_id": promise["request_id"]})
            if status == 200:
                return json.loads(data)

    def new_run(self):
        session = self.post("/create_session", {"tags": ["bench"], "sdk_version": "0.36.0"})["session_id"]
        created = self.post("/create_model", {"session_id": session, "model_seq_id": 0, "base_model": "tinkrs/nano",
                                              "lora_config": {"rank": 8}})
        return self.wait(created)["model_id"]


def serve(stack, tools, data):
    command = [tools.programs["tinkrs"], "serve", "--addr", "127.0.0.1:0", "--data-dir", data]
    return stack.enter_context(Server(command)), shown([*command[:-1], "<data>"])


def value(name, step):
    """Something like a curve."""
    return {"loss": 3 * math.exp(-step / 3000) + 0.3 * math.sin(step), "tokens": 1024, "datums": 16, "learning_rate": 1e-4 * (1 - step / STEPS)
            }.get(name, 100 + 10 * math.sin(step * (1 + len(name))))


def write_one(tools, data):
    """Writes the metrics of one run through the server."""
    with ExitStack() as stack:
        server, _ = serve(stack, tools, data)
        api = Api(server.url)
        run = api.new_run()
        say(f"writing {STEPS:,} steps of a run")
        for step in range(1, STEPS + 1):
            api.post(f"/training_runs/{run}/metrics", {"step": step, "metrics": {name: value(name, step) for name in NAMES}})
    return run


def copy_rows(data, run):
    """Makes the other runs out of the first."""
    database = sqlite3.connect(Path(data) / "tinkrs.db")
    say(f"copying it to {RUNS:,} runs")
    database.execute("UPDATE series SET source = 0")
    (record, last), = database.execute("SELECT record, last_request FROM runs WHERE id = ?", [run])
    (session,), = database.execute("SELECT record FROM sessions WHERE id = ?", [run.split(":")[0]])
    database.execute("INSERT OR REPLACE INTO progress VALUES (?, ?, ?, ?, NULL)", [run, STEPS, STEPS * 1024, STEPS * 50.0])
    for number in range(1, RUNS):
        other = f"{number:08x}-0000-4000-8000-000000000000"
        new = f"{other}:train:0"
        described = {**json.loads(record), "id": new, "session": other, "name": f"sweep-{number}", "closed": "it was unloaded"}
        database.execute("INSERT INTO sessions VALUES (?, ?)", [other, json.dumps({**json.loads(session), "id": other})])
        database.execute("INSERT INTO runs (id, record, last_request, next) VALUES (?, ?, ?, 99)", [new, json.dumps(described), last - number * 1000])
        database.execute("INSERT INTO progress VALUES (?, ?, ?, ?, NULL)", [new, STEPS, STEPS * 1024, STEPS * 50.0])
        database.execute("INSERT INTO series (run, name, source, count, rows, stride, last_step, last_value) "
                         "SELECT ?, name, source, count, rows, stride, last_step, last_value * ? FROM series WHERE run = ?",
                         [new, 1 + number / RUNS, run])
        database.execute("INSERT INTO points SELECT n.id, p.step, p.value * ?1, p.low * ?1, p.high * ?1, p.count, p.time FROM series o "
                         "JOIN series n ON n.run = ?2 AND n.name = o.name JOIN points p ON p.series = o.id WHERE o.run = ?3 ORDER BY n.id, p.step",
                         [1 + number / RUNS, new, run])
        if number % 50 == 0:
            database.commit()
    database.commit()
    points, = database.execute("SELECT count(*) FROM points").fetchone()
    database.close()
    return points


def timed(api, path, **headers):
    """Milliseconds and bytes of an answer."""
    start = time.perf_counter()
    _, data = api.ask("GET", path, **headers)
    return {"ms": (time.perf_counter() - start) * 1000, "kb": len(data) / 1000}


def browser(url, run):
    """How long headless Chromium takes to show a page, from the click to the last curve; nothing where there is none."""
    script, chromium = ROOT / "conformance/studio/speed.mjs", os.environ.get("TINKRS_CHROMIUM") or shutil.which("chromium")
    if not script.exists() or not chromium:
        say("no browser: pages are not opened in one")
        return None
    node = subprocess.run([ROOT / "crates/studio/node-packages"], capture_output=True, text=True, check=True).stdout.strip()
    command = ["node", script, url, KEY, run]
    environment = {**os.environ, "TINKRS_NODE": node, "TINKRS_CHROMIUM": chromium}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{shown(command)}:\n{done.stderr[-3000:]}")
    return shown(["node", script, "<url>", KEY, "<run>"]), [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def opening(tools):
    with ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory(prefix="tinkrs-studio-"))
        run = write_one(tools, data)
        points = copy_rows(data, run)
        size = sum(file.stat().st_size for file in Path(data).glob("tinkrs.db*")) / 1e6
        say(f"{points:,} points, {size:,.0f} MB")
        server, command = serve(stack, tools, data)
        api, rows = Api(server.url), []
        what = f"{RUNS:,} runs of {STEPS:,} steps ({points:,} points, {size:,.0f} MB)"
        for name, path in [
            ("list of 50 runs", "/api/v1/studio/runs"),
            ("list, searched", "/api/v1/studio/runs?query=sweep-77"),
            ("all curves of a run, 500 points each", f"/api/v1/training_runs/{run}/metrics"),
            ("one curve, 2,000 points", f"/api/v1/training_runs/{run}/metrics?names=loss&points=2000"),
            ("page of runs", "/"),
            ("page of a run", f"/runs/{run}"),
        ]:
            side = Side("tinkrs serve", f"{command}; curl -H 'X-API-Key: {KEY}' '<url>{path.replace(run, '<run>')}'", lambda: timed(api, path))
            (rounds,) = alternate(name, [side], 4 * ROUNDS)
            rows.append(single(f"{what}: {name}", Metric("ms", "time of the answer", "ms", "wall"), side, rounds))
            rows.append(single(f"{what}: {name}", Metric("kb", "size", "kB", "memory"), side, rounds))
        if seen := browser(server.url, run):
            command, rounds = seen
            side = Side("Chromium", command, None)
            for key, label in [("list_ms", "list until it is shown"), ("chart_ms", "run until its curves are drawn")]:
                rows.append(single(f"{what}: in headless Chromium", Metric(key, label, "ms", "wall"), side, rounds))
        return rows


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def watching(url, run):
    """Readers of what four open pages read: two of the list, two of the run."""
    stopped, readers = threading.Event(), []

    def read(path):
        host = urlsplit(url).netloc
        connection = socket.create_connection(host.split(":"))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nX-API-Key: {KEY}\r\n\r\n".encode())
        while not stopped.is_set():
            if select.select([connection], [], [], 0.1)[0] and not connection.recv(65536):
                break
        connection.close()

    for number in range(PAGES):
        path = "/api/v1/studio/events" + (f"?run={run}" if number % 2 else "")
        readers.append(threading.Thread(target=read, args=[path], daemon=True))
        readers[-1].start()
    time.sleep(0.5)
    yield
    stopped.set()
    for reader in readers:
        reader.join()


def watched(tools):
    """One run, with and without pages, in turns."""
    with ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory(prefix="tinkrs-studio-"))
        server, command = serve(stack, tools, data)
        api = Api(server.url)
        run, number = api.new_run(), [0]
        tokens = [(7 * place) % 500 + 5 for place in range(LENGTH)]
        datum = {"model_input": {"chunks": [{"tokens": tokens}]}, "loss_fn_inputs": {
            "target_tokens": {"data": tokens[1:] + [5], "dtype": "int64", "shape": [LENGTH]}}}

        def train():
            used, start = cpu_seconds(server.process.pid), time.perf_counter()
            for _ in range(ROUND):
                number[0] += 2
                api.post("/forward_backward", {"model_id": run, "seq_id": number[0] - 1, "forward_backward_input": {
                    "data": [datum] * BATCH, "loss_fn": "cross_entropy"}})
                step = api.post("/optim_step", {"model_id": run, "seq_id": number[0], "adam_params": {"learning_rate": 1e-4}})
                api.wait(step)
            return {"wall_ms": (time.perf_counter() - start) * 1000 / ROUND, "cpu_ms": (cpu_seconds(server.process.pid) - used) * 1000 / ROUND}

        def train_watched():
            with watching(server.url, run):
                return train()

        train()
        sides = [Side(f"with {PAGES} pages", command, train_watched), Side("with none", command, train)]
        results = alternate("training", sides, 2 * ROUNDS)
        what = f"tinkrs/nano: a step of {BATCH} x {LENGTH} tokens, {PAGES} pages open and none"
        return [row(what, Metric("cpu_ms", "CPU of the server in a step", "ms", "CPU"), sides, results),
                row(what, Metric("wall_ms", "time of a step", "ms", "wall"), sides, results)]


def run(tools):
    return opening(tools) + watched(tools)
