#!/usr/bin/env python3
"""Writes what the tests of the chat formats compare with: the renderers of `tinker-cookbook`.

usage: cookbook.py OUT [MODELS]          (needs `tinker-cookbook` 0.5.8 and what it needs)
       cookbook.py --show RENDERER CONVERSATION

OUT is `crates/chat/tests/data/cookbook.json`. It gets, for each renderer that the package has and each conversation
below, a hash of the tokens of a prompt and of a training example, and the weights of its masks as lengths of runs:
how many tokens do not count, how many then count, and so on. Short texts are there too, to see what differs; `--show`
prints the long ones.

The tokenizers of most models cannot be had here, so `tests/data/tokenizer.json` stands in, which has the control
tokens of all formats. Inkling's format comes with its own tokenizer; its texts are encoded anew with ours. With MODELS,
a folder that has `qwen3-tokenizer`, the formats of Qwen3 get hashes with the real tokenizer too.
"""
import json
import logging
import pathlib
import sys
import warnings

from tinker_cookbook import model_info, renderers
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers import ToolCall, TrainOnWhat
from tinker_cookbook.tokenizer_utils import get_tokenizer
from transformers import PreTrainedTokenizerFast

VERSION = "0.5.8"
DATE = "2026-01-31"
DATA = pathlib.Path(__file__).parent.parent / "data"
# All that the package has, but `qwen3_vl`, which no model in its list uses.
RENDERERS = """role_colon llama3 qwen3 qwen3_disable_thinking qwen3_instruct qwen3_vl_instruct
qwen3_5 qwen3_5_disable_thinking qwen3_5_preserve_thinking qwen3_8_xhigh_reasoning qwen3_8_medium_reasoning
qwen3_8_low_reasoning qwen3_8_disable_thinking deepseekv3 deepseekv3_disable_thinking deepseekv3_thinking
deepseekv4_1 deepseekv4_1_low_reasoning deepseekv4_1_max_reasoning deepseekv4_1_disable_thinking
deepseekv4_1_preserve_thinking glm5_3_max_reasoning glm5_3_low_reasoning glm5_3_high_reasoning kimi_k2 kimi_k25
kimi_k25_disable_thinking kimi_k26 kimi_k26_disable_thinking kimi_k26_preserve_thinking nemotron3
nemotron3_low_thinking nemotron3_disable_thinking nemotron3_preserve_thinking nemotron3_ultra
nemotron3_ultra_disable_thinking nemotron3_ultra_medium_thinking nemotron3_ultra_preserve_thinking
gpt_oss_no_sysprompt gpt_oss_low_reasoning gpt_oss_medium_reasoning gpt_oss_high_reasoning tml_v0""".split()

WEATHER = {"name": "get_weather", "description": "Says how warm it is.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Where?"}, "days": {"type": "integer"}},
    "required": ["city"]}}
BOOK = {"name": "book", "description": "Books a trip.\nOnce.", "parameters": {
    "type": "object", "description": "All of it",
    "properties": {
        "when": {"type": "string", "enum": ["now", "later"], "description": "the time"},
        "people": {"type": "array", "items": {"type": "string", "description": "a name"}, "minItems": 1},
        "budget": {"type": "number", "minimum": 0, "maximum": 9.5, "default": 1.5},
        "hotel": {"type": "object", "properties": {"stars": {"type": ["integer", "null"]}, "name": {"type": "string"}},
                  "required": ["name"], "additionalProperties": False},
        "note": {"anyOf": [{"type": "string"}, {"type": "boolean"}], "default": "none"}},
    "required": ["when", "hotel"]}}
TOOLS = [{"type": "function", "function": tool} for tool in (WEATHER, BOOK)]


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, id=None, **arguments):
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": id, **call} if id else call


CONVERSATIONS = {
    "system": {"messages": [message("system", "You are a helpful assistant."), message("user", "What is 2 + 2?"),
                            message("assistant", "It is 4.")]},
    "turns": {"messages": [message("system", "Be brief."), message("user", "hello"), message("assistant", "hello there"),
                           message("user", "what is\n\nfine?"), message("assistant", "the weather\n\nand more")]},
    "no system": {"messages": [message("user", "hello"), message("assistant", "hello there"),
                               message("user", "warm?"), message("assistant", "yes")]},
    "thinking": {"messages": [message("user", "warm?"), message("assistant", "yes", reasoning_content="because 20 > 10"),
                              message("user", "why?"),
                              message("assistant", "20 degrees", reasoning_content="think\n\nthink")]},
    "unicode": {"messages": [message("user", "Grüße, naïve 🙂 \n\n日本 x"), message("assistant", "ça va — 20 °C")]},
    "tools": {"tools": TOOLS, "messages": [
        message("system", "Use tools."), message("user", "How warm is it in Paris?"),
        message("assistant", "I call:", tool_calls=[call("get_weather", city="Paris", days=2, near=["a", {"b": 1.5}])]),
        message("tool", "20", name="get_weather"), message("assistant", "twenty degrees")]},
    "only calls": {"tools": TOOLS, "messages": [
        message("user", "Paris and Rome?"),
        message("assistant", "", tool_calls=[call("get_weather", "functions.get_weather:0", city="Paris"),
                                             call("get_weather", "functions.get_weather:1", city="Rome")]),
        message("tool", "{\"warm\": 30}", name="get_weather", tool_call_id="functions.get_weather:1"),
        message("tool", "20", name="get_weather", tool_call_id="functions.get_weather:0"),
        message("assistant", "20 and 30")]},
    "thinking and calls": {"tools": TOOLS, "messages": [
        message("user", "warm?"),
        message("assistant", "I call:", reasoning_content="let me ask",
                tool_calls=[call("get_weather", "functions.get_weather:0", city="Paris")]),
        message("tool", "20", name="get_weather", tool_call_id="functions.get_weather:0"),
        message("assistant", "yes", reasoning_content="20 is warm"),
        message("user", "sure?"), message("assistant", "quite", reasoning_content="it is")]},
    "steps": {"tools": TOOLS, "messages": [
        message("user", "warm?"),
        message("assistant", "", reasoning_content="let me ask", tool_calls=[call("get_weather", "c1", city="Paris")]),
        message("tool", "20", name="get_weather", tool_call_id="c1"),
        message("assistant", "yes", reasoning_content="20 is warm")]},
    "customized": {"messages": [message("system", "Be brief.", trainable=False), message("user", "hello", trainable=True),
                                message("assistant", "hello there", trainable=False),
                                message("user", "warm?", trainable=False), message("assistant", "yes", trainable=True)]},
}

# Their last answers are also begun for the model. Not those of `tml_v0`, whose renderer has no beginnings.
PREFILLED = ("system", "turns", "thinking", "tools")


def cookbook_message(given):
    """The same message in the package's own shape."""
    said = {"role": given["role"], "content": given["content"]}
    if "reasoning_content" in given:
        said["content"] = [{"type": "thinking", "thinking": given["reasoning_content"]},
                           {"type": "text", "text": given["content"]}]
    if "tool_calls" in given:
        said["tool_calls"] = [ToolCall(id=call.get("id"), function=ToolCall.FunctionBody(
            name=call["function"]["name"], arguments=json.dumps(call["function"]["arguments"])))
            for call in given["tool_calls"]]
    for same in ("name", "tool_call_id", "trainable"):
        if same in given:
            said[same] = given[same]
    return said


def cookbook_messages(renderer, conversation):
    messages = [cookbook_message(given) for given in conversation["messages"]]
    if "tools" not in conversation:
        return messages
    system = messages.pop(0)["content"] if messages[0]["role"] == "system" else ""
    tools = [tool["function"] for tool in conversation["tools"]]
    return renderer.create_conversation_prefix_with_tools(tools, system) + messages


class StandIn:
    """Our tokenizer: what a renderer wrote as tokens of it."""
    def __init__(self, path):
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))

    def renderer(self, name):
        renderer = renderers.get_renderer(name, self.tokenizer, model_name="stand-in")
        if name.startswith("gpt_oss"):
            renderer.current_date = DATE
        return renderer

    def tokens(self, tokens):
        return tokens

    def decode(self, tokens):
        return self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)


class Inkling(StandIn):
    """Inkling's tokenizer, whose texts are encoded with ours."""
    def __init__(self, path):
        super().__init__(path)
        self.inkling = get_tokenizer("thinkingmachines/Inkling")

    def renderer(self, name):
        return renderers.get_renderer(name, self.inkling)

    def runs(self, tokens):
        """Each control token, and each text between two of them, with where it begins and ends."""
        special, start = self.inkling.tml_tokenizer.is_special_token, 0
        while start < len(tokens):
            end = start + 1
            if not special(tokens[start]):
                while end < len(tokens) and not special(tokens[end]):
                    end += 1
            yield start, end
            start = end

    def encode(self, tokens, start, end):
        text = self.inkling.decode(tokens[start:end])
        return self.tokenizer.encode(text, add_special_tokens=False)

    def tokens(self, tokens):
        return [token for start, end in self.runs(tokens) for token in self.encode(tokens, start, end)]

    def weights(self, tokens, weights):
        result = []
        for start, end in self.runs(tokens):
            assert len(set(weights[start:end])) == 1, "a text counts as a whole"
            result += [weights[start]] * len(self.encode(tokens, start, end))
        return result


def hashed(tokens):
    """FNV-1a over the tokens as 32-bit numbers, the lowest byte first."""
    value = 0xcbf29ce484222325
    for token in tokens:
        for byte in token.to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"{value:016x}"


def runs(weights):
    """The lengths of runs of weights: of 0, then of 1, and so on."""
    lengths, expected = [0], 0
    for weight in weights:
        assert weight in (0, 1)
        if weight != expected:
            lengths.append(0)
            expected = weight
        lengths[-1] += 1
    return lengths


def prompt(stand_in, renderer, messages, **more):
    return stand_in.tokens(renderer.build_generation_prompt(messages, **more).to_ints())


def case(name, label, stand_in):
    conversation, renderer = CONVERSATIONS[label], stand_in.renderer(name)
    messages = cookbook_messages(renderer, conversation)
    result = {"format": name, "conversation": label}
    modes = [mode for mode in TrainOnWhat if (mode == TrainOnWhat.CUSTOMIZED) == (label == "customized")]
    masks = {}
    for mode in modes:
        if mode == TrainOnWhat.ALL_TOKENS:
            continue  # every token, in ours
        try:
            example, weights = renderer.build_supervised_example(messages, mode)
        except (NotImplementedError, RendererError):
            continue  # Inkling's has three masks, and no thinking is trained on where it is turned off
        tokens, weights = example.to_ints(), weights.tolist()
        if isinstance(stand_in, Inkling):
            weights = stand_in.weights(tokens, weights)
        tokens = stand_in.tokens(tokens)
        assert len(tokens) == len(weights)
        result.setdefault("example", {"text": stand_in.decode(tokens), "tokens": hashed(tokens)})
        assert result["example"]["tokens"] == hashed(tokens)
        masks[mode.value] = runs(weights)
    if not masks:
        raise NotImplementedError("the renderer refuses the conversation")
    result["example"]["masks"] = masks
    if label != "customized":
        tokens = prompt(stand_in, renderer, messages[:-1])
        result["prompt"] = hashed(tokens)
        text = stand_in.decode(tokens)
        if not result["example"]["text"].startswith(text):
            result["prompt_text"] = text
    if label in PREFILLED and name != "tml_v0":
        begin = "<|channel|>final<|message|>" if name.startswith("gpt_oss") else ""
        result["prefilled"] = hashed(prompt(stand_in, renderer, messages[:-1], prefill=begin + "Sure, it"))
    return result


def models():
    lists = [getattr(model_info, name)() for name in dir(model_info) if name.startswith("get_") and name.endswith("_info")]
    return {f"{attributes.organization}/{name}": attributes.recommended_renderers[0]
            for known in lists for name, attributes in sorted(known.items())}


def main():
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    stand_in, inkling = StandIn(DATA / "tokenizer.json"), Inkling(DATA / "tokenizer.json")
    if sys.argv[1] == "--show":
        name, label = sys.argv[2:]
        print(json.dumps(case(name, label, inkling if name == "tml_v0" else stand_in), indent=1, ensure_ascii=False))
        return
    cases, refused = [], []
    short = 400
    for name in RENDERERS:
        for label in CONVERSATIONS:
            try:
                cases.append(case(name, label, inkling if name == "tml_v0" else stand_in))
            except (NotImplementedError, RendererError, AssertionError) as error:
                refused.append({"format": name, "conversation": label, "why": str(error).split(". ")[0][:120]})
    golden = {"package": f"tinker-cookbook {VERSION}", "models": models(), "date": DATE, "refused": refused}
    if len(sys.argv) > 2:
        real = StandIn(pathlib.Path(sys.argv[2]) / "qwen3-tokenizer" / "tokenizer.json")
        golden["qwen3_tokenizer"] = [
            {"format": name, "conversation": label, "example": found["example"]["tokens"], "prompt": found.get("prompt"),
             "masks": found["example"]["masks"]}
            for name in ("qwen3", "qwen3_instruct") for label in ("turns", "unicode", "tools")
            for found in [case(name, label, real)]]
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in golden.items()]
    for key, value in (("conversations", CONVERSATIONS),):
        inside = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in value.items())
        lines.append(f"{json.dumps(key)}: {{\n{inside}\n}}")
    for entry in cases:
        if len(entry["example"]["text"]) > short:
            del entry["example"]["text"]
            entry.pop("prompt_text", None)
    inside = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in cases)
    lines.append(f"\"cases\": [\n{inside}\n]")
    pathlib.Path(sys.argv[1]).write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
