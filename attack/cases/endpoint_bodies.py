"""What a stranger writes into requests of the OpenAI and Anthropic APIs: each is refused, with its member named, in the form of the API."""

import json

from attack.harness import NANO, healthz

TITLE = "megabyte names, thousands of stops, broken UTF-8, bidi, half bodies, unknown roles in OpenAI and Anthropic requests"
HUGE = "x" * (1 << 20)


def cases():
    said = [{"role": "user", "content": "hi"}]
    chat = {"model": NANO, "messages": said, "max_tokens": 4}
    text = {"model": NANO, "prompt": "hi", "max_tokens": 4}
    stops = [f"stop {number}" for number in range(5_000)]
    function = lambda name: {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    yield "chat/completions", chat | {"stop": stops}, "stop"
    yield "messages", chat | {"stop_sequences": stops}, "stop_sequences"
    yield "chat/completions", chat | {"logit_bias": {str(token): 1 for token in range(100_000)}}, "logit_bias"
    yield "chat/completions", chat | {"tools": [function(HUGE)]}, "tools"
    yield "chat/completions", chat | {"tools": [function(f"f{number}") for number in range(5_000)]}, "tools"
    yield "messages", chat | {"tools": [{"name": HUGE, "input_schema": {"type": "object"}}]}, "tools"
    yield "messages", chat | {"tools": [{"name": "f", "input_schema": "text"}]}, "tools"
    yield "chat/completions", chat | {"model": HUGE}, "model"
    yield "chat/completions", chat | {"model": "\u202egpj.exe"}, "model"
    yield "messages", chat | {"model": "tinker://00000000-0000-4000-8000-000000000000:train:0/sampler_weights/x"}, "model"
    yield "chat/completions", chat | {"messages": [{"role": "\u202erobot", "content": "x"}]}, "messages[0].role"
    yield "messages", chat | {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"
    yield "chat/completions", chat | {"messages": [{"role": "user", "content": "word " * 200_000}]}, "messages"
    yield "messages", chat | {"messages": [{"role": "user", "content": "word " * 200_000}]}, "messages"
    block = {"type": "text", "text": "twenty letters of it"}
    yield "messages", chat | {"messages": [{"role": "user", "content": [block] * 200_000}]}, "messages"
    yield "messages", chat | {"system": [block] * 200_000}, "messages"
    yield "messages", chat | {"messages": said * 100_000}, "messages"
    yield "chat/completions", chat | {"messages": said * 100_000}, "messages"
    yield "chat/completions", chat | {"messages": [{"role": "user", "content": "word " * 2_000_000}]}, "messages"
    yield "messages", chat | {"messages": [*said, {"role": "assistant", "content": "word " * 2_000_000}]}, "messages"
    yield "responses", {"model": NANO, "input": "hi", "max_output_tokens": 4, "metadata": {"a": HUGE}}, "metadata"
    yield "responses", {"model": NANO, "input": "hi", "max_output_tokens": 4, "tools": [{"type": "function", "name": "f", "description": HUGE}]}, "tools"
    yield "chat/completions", chat | {"messages": [{"role": "user", "content": [block | {"colour": "red"}]}]}, "messages[0].content[0].colour"
    yield "messages", chat | {"messages": [{"role": "user", "content": [block | {"colour": "red"}]}]}, "messages[0].content[0].colour"
    yield "responses", {"model": NANO, "input": [{"role": "user", "content": "x", "colour": "red"}]}, "input[0].colour"
    yield "completions", text | {"prompt": "a" * 10_000_000}, "prompt"
    yield "completions", text | {"prompt": ["hi"] * 100_000}, "prompt"
    yield "completions", text | {"prompt": [7] * 1_000_000}, "prompt"
    yield "completions", text | {"n": 128, "best_of": 2 ** 31}, "best_of"
    yield "completions", text | {"n": 2 ** 31, "max_tokens": 2 ** 31}, "n"
    yield "completions", text | {"max_tokens": 2 ** 32 - 1}, "max_tokens"
    yield "responses", {"model": NANO, "input": "hi", "max_output_tokens": 2 ** 32 - 1}, "max_output_tokens"
    yield "chat/completions", chat | {HUGE: 1}, "x"
    yield "chat/completions", chat | {"temperature": "hot"}, "temperature"


RAW = [b"\xff\xfe", b"{", b"[" * 200_000, b'{"model": "\\ud800"}', b'{"model": "tinkrs/nano", "messages": [{"role": "user", "content": "\xc3\x28"}]}',
       b'{"model": 1e999}', b"", b"null", b'{"model": "tinkrs/nano"} {"model": "tinkrs/nano"}']


def attack(target):
    server = target.serve()
    api = server.api()
    wrong, count = [], 0

    def look(what, path, status, answer, member):
        try:
            error = json.loads(answer)["error"]
            message = error["message"]
        except (ValueError, KeyError, TypeError):
            wrong.append(f"{what}: {status}, and not an error of the API")
            return
        if status not in (400, 404, 413, 429) or not message.startswith(f"`{member}" if member else ""):
            wrong.append(f"{what}: {status} {message[:60]}")
        elif len(answer) > 2048 or "\u202e" in message:
            wrong.append(f"{what}: {len(answer)} bytes of error, or text that turns around")

    with healthz(server) as probe:
        for path, body, member in cases():
            for stream in (False, True):
                count += 1
                status, answer = api.send("POST", f"/v1/{path}", body | {"stream": stream}, timeout=60)
                look(f"{path} {member[:20]}", path, status, answer, member)
        for path in ("chat/completions", "completions", "responses", "messages", "messages/count_tokens"):
            for body in RAW:
                count += 1
                status, answer = api.send("POST", f"/v1/{path}", body, timeout=60)
                look(f"{path} {body[:20]!r}", path, status, answer, "")
            # Half of a body, and then nothing more.
            connection = server.connect()
            connection.sendall(f"POST /v1/{path} HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: tml-attacked\r\ncontent-type: application/json\r\n"
                               f"content-length: 500\r\n\r\n{{\"model\"".encode())
            connection.close()
    status, answer = api.send("POST", "/v1/chat/completions", {"model": NANO, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4})
    longest = max(probe.times, default=float("inf"))
    held = not wrong and not probe.failures and status == 200 and longest < 5
    seen = f"{count - len(wrong)} of {count} refused with their member in the API's form; health within {longest:.2f} s"
    return "; ".join([*wrong[:3], seen]), held
