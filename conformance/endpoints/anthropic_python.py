"""The `anthropic` package for Python on our server. usage: anthropic_python.py RESULTS"""

import anthropic
from checks import ANSWER, BASE, CHAT, KEY, RUN, URL, WEATHER, Checks, raises

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
check = Checks("anthropic Python", anthropic.__version__)
# The package has no argument for it any more.
GREEDY = {"extra_body": {"temperature": 0}}
TOOL = {"name": "weather", "description": "Tells the weather", "input_schema": WEATHER}


@check("a message with what was trained, by the name of its run")
def _():
    done = client.messages.create(model=RUN, messages=CHAT, max_tokens=20, **GREEDY)
    assert ANSWER in done.content[0].text and done.stop_reason == "end_turn" and done.role == "assistant", done
    assert done.usage.input_tokens > 1 and done.usage.output_tokens > 1


@check("a message in pieces is the whole")
def _():
    options = {"model": RUN, "messages": CHAT, "max_tokens": 20, **GREEDY}
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text and final.stop_reason == "end_turn"
    kinds = [event.type for event in client.messages.create(stream=True, **options)]
    assert kinds[0] == "message_start" and kinds[1] == "content_block_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds


@check("a system text and content in blocks")
def _():
    blocks = [{"role": "user", "content": [{"type": "text", "text": CHAT[0]["content"]}]}]
    assert client.messages.create(model=BASE, system="Be kind.", messages=blocks, max_tokens=4).content


@check("stop sequences and the limit of tokens end an answer")
def _():
    done = client.messages.create(model=RUN, messages=CHAT, max_tokens=20, **GREEDY, stop_sequences=["honey"])
    assert done.stop_reason == "stop_sequence" and done.stop_sequence == "honey", done
    done = client.messages.create(model=RUN, messages=CHAT, max_tokens=1, **GREEDY)
    assert done.stop_reason == "max_tokens" and done.usage.output_tokens == 1


@check("tokens are counted")
def _():
    counted = client.messages.count_tokens(model=BASE, messages=CHAT, system="Be kind.")
    done = client.messages.create(model=BASE, messages=CHAT, system="Be kind.", max_tokens=1)
    usage = done.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0), (counted, usage)


@check("a tool is called, and its result read")
def _():
    done = client.messages.create(model=BASE, messages=CHAT, tools=[TOOL], tool_choice={"type": "any"}, max_tokens=120, **GREEDY)
    call = [block for block in done.content if block.type == "tool_use"][0]
    assert done.stop_reason == "tool_use" and call.name == "weather" and call.input["city"] in ("Paris", "Rome")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}
    messages = [*CHAT, {"role": "assistant", "content": done.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(model=BASE, messages=messages, tools=[TOOL], max_tokens=5).content is not None


@check("errors have their kind, and name what is wrong")
def _():
    raises(anthropic.NotFoundError, lambda: client.messages.create(model="nobody", messages=CHAT, max_tokens=1), "nobody")
    raises(anthropic.BadRequestError, lambda: client.messages.create(model=BASE, messages=CHAT, max_tokens=0), "max_tokens")
    raises(anthropic.BadRequestError, lambda: client.messages.create(model=BASE, messages=[], max_tokens=1), "messages")
    other = anthropic.Anthropic(base_url=URL, api_key="wrong", max_retries=0)
    raises(anthropic.AuthenticationError, lambda: other.messages.create(model=BASE, messages=CHAT, max_tokens=1))


@check("below the hosted service's path")
def _():
    hosted = anthropic.Anthropic(base_url=f"{URL}/anthropic/api", api_key=KEY, max_retries=0)
    assert hosted.messages.create(model=BASE, messages=CHAT, max_tokens=2).content is not None


check.write()
