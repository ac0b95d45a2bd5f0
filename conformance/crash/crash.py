"""Trains with the official SDK while the server is killed again and again.

usage: crash.py BINARY MODEL_FOLDER [--kills N] [--seed N]

The same loop runs twice, each time on a server with a data folder of its own: once in peace, once while the server is
killed (SIGKILL) and started again at random moments. What the loop saw and the weights it ends with must be the same,
bit for bit. The random moments come from the seed.
"""

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

os.environ.update(TINKER_API_KEY="tml-crash", TINKER_TELEMETRY="0")

import tinker  # noqa: E402  (it reads the environment)
from tinker import types  # noqa: E402

STEPS = 40


class Server:
    """A server on a fixed port, which can be killed."""

    def __init__(self, binary, model, data):
        self.command = [binary, "serve", "--model", f"tiny={model}", "--data-dir", str(data), "--threads", "1"]
        self.address = "127.0.0.1:0"
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [*self.command, "--addr", self.address], stdout=subprocess.PIPE, text=True
        )
        line = self.process.stdout.readline()
        prefix = "listening on http://"
        assert line.startswith(prefix), f"the server did not start: {line!r}"
        self.address = line.strip().removeprefix(prefix)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Killer(threading.Thread):
    """Kills a server and starts it again until it is told to stop."""

    def __init__(self, server, seed):
        super().__init__(daemon=True)
        self.server, self.random = server, random.Random(seed)
        self.kills, self.stopped, self.error = 0, threading.Event(), None

    def run(self):
        try:
            while not self.stopped.wait(self.random.uniform(0.05, 0.6)):
                self.server.kill()
                self.kills += 1
                self.server.start()
        except Exception as error:  # reported by the main thread
            self.error = error


def datum(random_, length):
    tokens = [random_.randrange(1, 60) for _ in range(length)]
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (length - 1)},
    )


def train(address, until):
    """Trains at least STEPS steps, and on until `until` says that it is enough. Returns what the loop saw.

    It goes on from the step that the other run ended at if `until` is a number.
    """
    service = tinker.ServiceClient(base_url=f"http://{address}")
    training = service.create_lora_training_client(base_model="tiny", rank=8, seed=7)
    random_, seen, step = random.Random(5), [], 0
    while step < until if isinstance(until, int) else not (step >= STEPS and until()):
        batch = [datum(random_, random_.randrange(4, 24)) for _ in range(6)]
        passed = training.forward_backward(batch, "cross_entropy")
        updated = training.optim_step(types.AdamParams(learning_rate=1e-3, grad_clip_norm=1.0))
        seen.append((passed.result().metrics["loss:sum"], updated.result().metrics))
        if step % 8 == 3:
            sampler = training.save_weights_and_get_sampling_client()
            params = types.SamplingParams(max_tokens=12, seed=step, temperature=0.8)
            drawn = sampler.sample(types.ModelInput.from_ints([1, 2, 3]), 4, params).result()
            seen.append([(list(s.tokens), list(s.logprobs)) for s in drawn.sequences])
        if step % 16 == 7:
            path = training.save_state(f"step-{step}").result().path
            training.forward(batch, "cross_entropy").result()
            seen.append(path.rsplit("/", 1)[-1])
        step += 1
    training.save_state("final").result()
    service.close("success").result()
    return step, seen


def digest(data):
    """The SHA-256 of the final checkpoint: weights, optimizer and accumulated gradients."""
    files = sorted(Path(data).glob("checkpoints/*/weights/final.*/*"))
    # The manifest says whose it is and when it was made.
    files = [file for file in files if file.name != "manifest.jsonl"]
    assert files, "there is no final checkpoint"
    sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return sums


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        troubled, peaceful = Path(folder, "troubled"), Path(folder, "peaceful")
        start = time.monotonic()
        server = Server(args.binary, args.model, troubled)
        killer = Killer(server, args.seed)
        killer.start()
        steps, seen = train(server.address, lambda: killer.kills >= args.kills)
        killer.stopped.set()
        killer.join()
        assert killer.error is None, killer.error
        server.kill()
        print(f"{killer.kills} kills in {steps} steps and {time.monotonic() - start:.0f} s", flush=True)

        server = Server(args.binary, args.model, peaceful)
        _, expected = train(server.address, steps)
        server.kill()
        for number, (found, wanted) in enumerate(zip(seen, expected, strict=True)):
            assert found == wanted, f"event {number}: {found} instead of {wanted}"
        assert digest(troubled) == digest(peaceful), "the final checkpoints differ"
    print(f"PASSED: {len(seen)} events and the final weights are the same, bit for bit")


if __name__ == "__main__":
    sys.exit(main())
