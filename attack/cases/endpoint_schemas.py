"""Schemas that take time or memory to compile, or that nothing satisfies, beside health checks of the server."""

import json
import time

from attack.harness import NANO, healthz

TITLE = "JSON schemas made to take time and memory, 24 at a time"
PROMPT = [{"role": "user", "content": "hi"}]


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def doubling(levels):
    definitions = {}
    for level in range(levels):
        other = {"$ref": f"#/$defs/d{level + 1}"}
        definitions[f"d{level}"] = {"anyOf": [{"items": other}, other, {"properties": {"a": other, "b": other}}]}
    definitions[f"d{levels}"] = {"type": "string"}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


SCHEMAS = {
    "nesting": nested(100),
    "nesting beyond JSON": nested(900),
    "enum": {"enum": [f"value {number}" for number in range(19_000)]},
    "self": {"$ref": "#"},
    "circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "doubling": doubling(60),
    "states": {"type": "string", "pattern": "^(a|b)*a(a|b){300}$"},
    "counts": {"type": "string", "pattern": "^((((a{1,99}){1,99}){1,99}){1,99}){1,99}$"},
    "all of": {"allOf": [{"type": "string", "pattern": f"^(a|b)*a(a|b){{{number}}}$"} for number in range(100)]},
    "long": {"type": "string", "minLength": 9_999, "maxLength": 10_000},
    "items": {"type": "array", "minItems": 9_000, "maxItems": 10_000, "items": {"type": "array", "maxItems": 10_000}},
    "properties": {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(6_000)}},
    "nothing": {"allOf": [{"type": "string"}, {"type": "integer"}]},
    "impossible member": {"type": "object", "properties": {"a": False}, "required": ["a"]},
    "multiples": {"type": "integer", "multipleOf": 1_000_000_007},
    "multiples together": {"allOf": [{"type": "integer", "multipleOf": number} for number in (999_983, 999_979, 999_961)]},
    "dots": {"type": "string", "pattern": "^(.*a.*b.*c.*d.*e.*f.*g.*h.*){20}$"},
}


# What the library that compiles schemas gets wrong where nothing checks its numbers.
MUST_REFUSE = ("multiples", "multiples together")
# What a refusal says. JSON itself may have no more than 128 levels here, so a deeper schema is never read.
REFUSALS = {"nesting beyond JSON": "recursion limit exceeded at line 1 column"}


def attack(target):
    server = target.serve()
    api = server.api()
    body = lambda schema: {"model": NANO, "messages": PROMPT, "max_tokens": 64, "response_format": {
        "type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
    # Prepares the vocabulary and what else is there from the first request on.
    api.send("POST", "/v1/chat/completions", body({"enum": ["a"]}))
    before = server.memory_mib("VmRSS")
    slowest, wrong, answered = (0.0, ""), [], 0
    with healthz(server) as probe:
        for name, schema in SCHEMAS.items():
            start = time.monotonic()
            status, answer = api.send("POST", "/v1/chat/completions", body(schema), timeout=60)
            slowest = max(slowest, (time.monotonic() - start, name))
            answered += status == 200
            message = json.loads(answer).get("error", {}).get("message", "") if status != 200 else ""
            if name in MUST_REFUSE and status != 400 or "backtrace" in message:
                wrong.append(f"{name}: {status} {message[:80]}")
            elif status not in (200, 400) or (status == 400 and (REFUSALS.get(name, "schema") not in message or len(message) > 1100)):
                wrong.append(f"{name}: {status} {message[:80]}")
    grown = server.memory_mib() - before
    longest = max(probe.times, default=float("inf"))
    held = not wrong and not probe.failures and slowest[0] < 20 and grown < 256 and longest < 5 and server.is_alive()
    seen = (f"{answered} of {len(SCHEMAS)} answered, the others refused by name; slowest {slowest[0]:.1f} s ({slowest[1]}); "
            f"{grown:.0f} MiB more; health within {longest:.2f} s")
    return "; ".join([*wrong[:2], seen]), held
