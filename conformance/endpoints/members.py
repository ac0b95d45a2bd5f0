"""Every member of a request that the official clients have, and what becomes of it on our server. usage: members.py RESULTS

A member is `honoured`, `taken` because it cannot change an answer, or `refused` by its name. A new release of a client that has another member
fails here until it is decided what becomes of that.
"""

import http.client
import json
from urllib.parse import urlsplit

import anthropic
import openai
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from checks import BASE, KEY, URL, Checks
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
HONOURED, TAKEN, REFUSED = "honoured", "taken", "refused"

SAMPLING = {
    "frequency_penalty": (HONOURED, 0.5), "logit_bias": (HONOURED, {"5": 1}), "n": (HONOURED, 2), "presence_penalty": (HONOURED, 0.5),
    "seed": (HONOURED, 1), "stop": (HONOURED, ["x"]), "stream": (HONOURED, True), "temperature": (HONOURED, 0.5), "top_p": (HONOURED, 0.5),
    "user": (TAKEN, "u"),
}
CACHE = {"prompt_cache_key": (TAKEN, "k"), "prompt_cache_options": (TAKEN, {"mode": "x"}), "prompt_cache_retention": (TAKEN, "24h")}
MESSAGES = {
    "cache_control": (TAKEN, {"type": "ephemeral"}), "container": (REFUSED, "c"), "diagnostics": (REFUSED, {}), "inference_geo": (TAKEN, "eu"),
    "max_tokens": (HONOURED, 3), "messages": (HONOURED, None), "metadata": (TAKEN, {"user_id": "u"}), "model": (HONOURED, None),
    "output_config": (HONOURED, {"format": {"type": "json_schema", "schema": {"enum": ["a"]}}}), "service_tier": (TAKEN, "auto"),
    "speed": (TAKEN, "standard"), "stop_sequences": (HONOURED, ["x"]), "stream": (HONOURED, True), "system": (HONOURED, "Be brief."),
    # The model of this check has a format without thoughts and tools: what cannot be honoured is refused.
    "thinking": (HONOURED, {"type": "disabled"}), "tool_choice": (HONOURED, {"type": "none"}), "tools": (HONOURED, []),
    "user_profile_id": (TAKEN, "u"), "workspace_id": (TAKEN, "w"),
}
TABLE = {
    "completions": SAMPLING | {
        "best_of": (HONOURED, 2), "echo": (HONOURED, True), "logprobs": (HONOURED, 1), "max_tokens": (HONOURED, 3), "model": (HONOURED, None),
        "prompt": (HONOURED, None), "stream_options": (HONOURED, {"include_usage": True}), "suffix": (REFUSED, "x"),
    },
    "chat/completions": SAMPLING | CACHE | {
        "audio": (REFUSED, {"voice": "alloy", "format": "wav"}), "function_call": (REFUSED, "auto"), "functions": (REFUSED, [FUNCTION]),
        "logprobs": (HONOURED, True), "max_completion_tokens": (HONOURED, 3), "max_tokens": (HONOURED, 3), "messages": (HONOURED, None),
        "metadata": (TAKEN, {"a": "b"}), "modalities": (HONOURED, ["text"]), "model": (HONOURED, None), "moderation": (REFUSED, {"model": "m"}),
        "parallel_tool_calls": (HONOURED, False), "prediction": (TAKEN, {"type": "content", "content": "x"}),
        "reasoning_effort": (REFUSED, "much"), "response_format": (HONOURED, {"type": "json_object"}), "safety_identifier": (TAKEN, "s"),
        "service_tier": (TAKEN, "auto"), "store": (TAKEN, True), "stream_options": (HONOURED, {"include_usage": True}),
        "tool_choice": (HONOURED, "none"), "tools": (HONOURED, []), "top_logprobs": (REFUSED, 99), "verbosity": (REFUSED, "low"),
        "web_search_options": (REFUSED, {}),
    },
    "responses": CACHE | {
        "access_programs": (REFUSED, ["x"]), "background": (REFUSED, True), "context_management": (REFUSED, [{"type": "compaction"}]),
        "conversation": (REFUSED, "c"), "image": (REFUSED, {}), "include": (REFUSED, ["message.output_text.logprobs"]), "input": (HONOURED, None),
        "instructions": (HONOURED, "Be brief."), "max_output_tokens": (HONOURED, 3), "max_tool_calls": (TAKEN, 3), "metadata": (TAKEN, {"a": "b"}),
        "model": (HONOURED, None), "moderation": (REFUSED, {"model": "m"}), "parallel_tool_calls": (HONOURED, False),
        "previous_response_id": (REFUSED, "resp_1"), "prompt": (REFUSED, {"id": "p"}), "reasoning": (HONOURED, {}),
        "safety_identifier": (TAKEN, "s"), "service_tier": (TAKEN, "auto"), "store": (TAKEN, True), "stream": (HONOURED, True),
        "stream_options": (TAKEN, {"include_obfuscation": False}), "temperature": (HONOURED, 0.5),
        "text": (HONOURED, {"format": {"type": "text"}}), "tool_choice": (HONOURED, "none"), "tools": (HONOURED, []), "top_logprobs": (REFUSED, 2),
        "top_p": (HONOURED, 0.5), "truncation": (REFUSED, "auto"), "user": (TAKEN, "u"),
    },
    "messages": MESSAGES,
    "messages, beta": MESSAGES | {
        # `betas` is sent as a header, which changes nothing here.
        "betas": (TAKEN, None), "compaction": (REFUSED, {}), "context_management": (REFUSED, {"edits": []}),
        "fallback_credit_token": (REFUSED, "t"), "fallbacks": (REFUSED, ["m"]), "mcp_servers": (REFUSED, [{"name": "s"}]), "thread": (REFUSED, {}),
    },
    "messages/count_tokens": {name: decision for name, decision in MESSAGES.items() if name in (
        "cache_control", "messages", "model", "output_config", "speed", "system", "thinking", "tool_choice", "tools", "user_profile_id",
        "workspace_id")},
}
TYPES = {
    "completions": completion_create_params.CompletionCreateParamsNonStreaming,
    "chat/completions": chat_create_params.CompletionCreateParamsNonStreaming,
    "responses": response_create_params.ResponseCreateParamsNonStreaming,
    "messages": message_create_params.MessageCreateParamsNonStreaming,
    "messages, beta": beta_message_create_params.MessageCreateParamsNonStreaming,
    "messages/count_tokens": message_count_tokens_params.MessageCountTokensParams,
}
OPENAI = ("completions", "chat/completions", "responses")


def members(request):
    """The names of all members of a request's type."""
    names = set(request.__annotations__)
    for base in getattr(request, "__orig_bases__", ()):
        names |= set(getattr(base, "__annotations__", ()))
    return names


def valid(path):
    said = [{"role": "user", "content": "hi"}]
    return {"completions": {"model": BASE, "prompt": "The sky is", "max_tokens": 4},
            "chat/completions": {"model": BASE, "messages": said, "max_tokens": 4},
            "responses": {"model": BASE, "input": "hi", "max_output_tokens": 4},
            "messages": {"model": BASE, "messages": said, "max_tokens": 4},
            "messages/count_tokens": {"model": BASE, "messages": said}}[path.partition(",")[0]]


def send(path, body):
    address = urlsplit(URL)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=120)
    connection.request("POST", f"/v1/{path.partition(',')[0]}", json.dumps(body), {"x-api-key": KEY, "content-type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def decided(path):
    known, found = set(TABLE[path]), members(TYPES[path])
    assert found == known, f"{path}: decide about {sorted(found - known)}; gone are {sorted(known - found)}"


def kept(path):
    wrong = []
    for name, (decision, value) in sorted(TABLE[path].items()):
        if value is None:
            continue
        body = valid(path) | {name: value}
        if name == "max_completion_tokens":
            del body["max_tokens"]
        status, answer = send(path, body)
        is_refused = status == 400 and f"`{name}" in answer
        if not (is_refused if decision == REFUSED else status == 200):
            wrong.append(f"{path} {name} ({decision}): {status} {answer[:200]}")
    assert not wrong, "\n".join(wrong)


def main():
    for client, version, paths in (("openai Python", openai.__version__, OPENAI),
                                   ("anthropic Python", anthropic.__version__, tuple(set(TABLE) - set(OPENAI)))):
        check = Checks(client, version)

        @check("every member that its types have is honoured, taken or refused by name")
        def _():
            for path in sorted(paths):
                decided(path)
                if URL:
                    kept(path)

        check.add()


if __name__ == "__main__":
    main()
