"""llama.cpp at the work that the example `measure` does: usage engine_llama.py SERVER FILE sample|prompt BATCH LENGTH

SERVER is llama.cpp's `llama-server`, FILE a GGUF file. All cores compute, or TINKRS_THREADS. Like `measure`, it prints
{"ready": true} after a round to warm up, and then for each line on stdin a line of JSON: the clock's and the server's
CPU seconds, the tokens, and the most memory that the server ever had.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROMPT = 16
TICKS = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def call(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.loads(answer.read())


def wait_until_healthy(url, process):
    while process.poll() is None:
        try:
            if call(f"{url}/health").get("status") == "ok":
                return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"llama-server ended with {process.returncode}")


def cpu_seconds(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mib(process):
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1]) / 1024


def main():
    # Ended from outside, it ends the server, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    server, file, kind, batch, length = sys.argv[1:]
    batch, length = int(batch), int(length)
    threads = os.environ.get("TINKRS_THREADS") or str(os.cpu_count())
    prompt, tokens = (PROMPT, length) if kind == "sample" else (length, 1)
    context = batch * (prompt + tokens + 32)
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [server, "-m", file, "-t", threads, "-tb", threads, "-np", str(batch), "-c", str(context), "--host", "127.0.0.1",
               "--port", str(port), "--no-webui", "--log-disable", "--cache-ram", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    turn = 0

    def one(index):
        # Other tokens in each round: the server remembers prompts in ways that a request cannot turn off.
        body = {"prompt": [(i * 31 + index * 17 + turn * 7_919) % 30_000 for i in range(prompt)], "n_predict": tokens, "ignore_eos": True,
                "temperature": 1.0, "seed": index, "cache_prompt": False, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
                "samplers": ["temperature"]}
        return call(f"{url}/completion", body)["tokens_predicted"]

    def work():
        nonlocal turn
        turn += 1
        start, cpu = time.monotonic(), cpu_seconds(process)
        with ThreadPoolExecutor(batch) as pool:
            drawn = sum(pool.map(one, range(batch)))
        if drawn != batch * tokens:
            sys.exit(f"llama-server drew {drawn} tokens instead of {batch * tokens}")
        seconds, done = time.monotonic() - start, drawn if kind == "sample" else batch * prompt
        return {"wall_s": seconds, "cpu_s": cpu_seconds(process) - cpu, "tokens": done, "tokens_per_s": done / seconds,
                "rss_mib": peak_mib(process)}

    try:
        wait_until_healthy(url, process)
        work()
        print(json.dumps({"ready": True}), flush=True)
        for _ in sys.stdin:
            print(json.dumps(work()), flush=True)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
