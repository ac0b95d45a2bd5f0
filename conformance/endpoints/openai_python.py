"""The `openai` package for Python on our server. usage: openai_python.py RESULTS"""

import json

import openai
from checks import ANSWER, BASE, CHAT, KEY, QUESTION, RUN, URL, WEATHER, Checks, raises

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
check = Checks("openai Python", openai.__version__)
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells the weather", "parameters": WEATHER}}


@check("models are listed, runs by name")
def _():
    names = [model.id for model in client.models.list()]
    assert BASE in names and RUN in names and f"{RUN}@latest" in names, names
    assert client.models.retrieve(BASE).id == BASE


@check("a completion, with usage")
def _():
    done = client.completions.create(model=BASE, prompt="The sky is", max_tokens=5, temperature=0)
    assert done.choices[0].finish_reason in ("stop", "length") and done.choices[0].text
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens


@check("completions of several prompts, texts and token ids")
def _():
    options = {"model": BASE, "max_tokens": 3, "temperature": 0}
    both = client.completions.create(prompt=["The sky is", "A cow says"], **options)
    assert [choice.index for choice in both.choices] == [0, 1]
    for prompt in ([5, 6, 7], [[5, 6, 7], [8, 9]]):
        assert client.completions.create(prompt=prompt, **options).choices[0].text is not None


@check("log-probabilities of the prompt by echo")
def _():
    done = client.completions.create(model=BASE, prompt="The sky is blue.", max_tokens=0, echo=True, logprobs=2, temperature=0)
    found = done.choices[0].logprobs
    assert done.choices[0].text == "The sky is blue." and "".join(found.tokens) == "The sky is blue.", found
    assert found.token_logprobs[0] is None and all(value <= 0 for value in found.token_logprobs[1:]), found
    assert len(found.tokens) == len(found.top_logprobs) == len(found.text_offset)


@check("a completion in pieces is the whole")
def _():
    options = {"model": BASE, "prompt": "The sky is", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**options).choices[0].text
    pieces = [chunk.choices[0].text for chunk in client.completions.create(stream=True, **options) if chunk.choices]
    assert "".join(pieces) == whole, (pieces, whole)


@check("a chat with what was trained, by the name of its run")
def _():
    for model in (RUN, f"{RUN}@latest"):
        done = client.chat.completions.create(model=model, messages=CHAT, temperature=0, max_completion_tokens=20)
        assert ANSWER in done.choices[0].message.content, done
        assert done.choices[0].finish_reason == "stop" and done.object == "chat.completion" and done.usage.completion_tokens > 1


@check("a chat in pieces is the whole, with usage at the end")
def _():
    options = {"model": RUN, "messages": CHAT, "temperature": 0, "max_tokens": 20}
    whole = client.chat.completions.create(**options).choices[0].message.content
    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole and chunks[-1].usage.completion_tokens > 1 and not chunks[-1].choices
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"


@check("log-probabilities of a chat, with the likeliest")
def _():
    done = client.chat.completions.create(model=RUN, messages=CHAT, temperature=0, max_tokens=5, logprobs=True, top_logprobs=3)
    tokens = done.choices[0].logprobs.content
    assert len(tokens) == done.usage.completion_tokens or len(tokens) == 5, done
    for token in tokens:
        assert len(token.top_logprobs) == 3 and abs(token.logprob - token.top_logprobs[0].logprob) < 1e-6


@check("several answers, and the same ones by seed")
def _():
    def draw():
        done = client.chat.completions.create(model=BASE, messages=CHAT, n=3, seed=7, temperature=1, max_tokens=8)
        return [choice.message.content for choice in done.choices]
    first = draw()
    assert len(first) == 3 and first == draw()


@check("stop texts and the limit of tokens end an answer")
def _():
    done = client.chat.completions.create(model=RUN, messages=CHAT, temperature=0, max_tokens=20, stop=["honey"])
    assert done.choices[0].finish_reason == "stop" and "honey" not in done.choices[0].message.content
    done = client.chat.completions.create(model=RUN, messages=CHAT, temperature=0, max_tokens=1)
    assert done.choices[0].finish_reason == "length" and done.usage.completion_tokens == 1


@check("logit_bias and penalties change the answer")
def _():
    def text(**options):
        done = client.completions.create(model=BASE, prompt="The cow says moo moo moo moo", max_tokens=16, temperature=0, **options)
        return done.choices[0].text
    plain, biased = text(), text(logit_bias={"65": 100})
    assert biased != plain and biased == biased[:1] * len(biased), (plain, biased)
    assert text(frequency_penalty=2) != plain and text(presence_penalty=2) != plain, plain


@check("a tool is called, and its result read")
def _():
    done = client.chat.completions.create(model=BASE, messages=CHAT, tools=[TOOL], tool_choice="required", max_tokens=120, temperature=0)
    call = done.choices[0].message.tool_calls[0]
    assert done.choices[0].finish_reason == "tool_calls" and call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    messages = [*CHAT, done.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
    assert client.chat.completions.create(model=BASE, messages=messages, tools=[TOOL], max_tokens=5).choices


@check("an answer by a JSON schema")
def _():
    schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": WEATHER, "strict": True}}
    done = client.chat.completions.create(model=BASE, messages=CHAT, response_format=schema, max_tokens=60, temperature=0)
    assert json.loads(done.choices[0].message.content)["city"] in ("Paris", "Rome")


@check("responses, whole and in pieces")
def _():
    done = client.responses.create(model=RUN, input=QUESTION, temperature=0, max_output_tokens=20)
    assert ANSWER in done.output_text and done.status == "completed" and done.usage.output_tokens > 1
    events = list(client.responses.create(model=RUN, input=QUESTION, temperature=0, max_output_tokens=20, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == done.output_text and events[0].type == "response.created" and events[-1].type == "response.completed"


@check("errors have their kind, and name what is wrong")
def _():
    raises(openai.NotFoundError, lambda: client.chat.completions.create(model="nobody", messages=CHAT), "nobody")
    raises(openai.BadRequestError, lambda: client.chat.completions.create(model=BASE, messages=CHAT, temperature=-1), "temperature")
    raises(openai.BadRequestError, lambda: client.completions.create(model=BASE, prompt="x", suffix="y"), "suffix")
    raises(openai.BadRequestError, lambda: client.completions.create(model=BASE, prompt="a " * 100_000, max_tokens=1))
    other = openai.OpenAI(base_url=f"{URL}/v1", api_key="wrong", max_retries=0)
    raises(openai.AuthenticationError, lambda: other.models.list())
    raises(openai.APIStatusError, lambda: client.embeddings.create(model=BASE, input="x"), "embeddings")


@check("a client that hangs up in the middle is no harm")
def _():
    with client.chat.completions.create(model=BASE, messages=CHAT, stream=True, max_tokens=200, temperature=1) as stream:
        next(iter(stream))
    assert client.chat.completions.create(model=BASE, messages=CHAT, max_tokens=2).choices


check.write()
