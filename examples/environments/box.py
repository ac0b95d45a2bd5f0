"""An environment for `tinkrs train rl --env-command 'python3 box.py'`: a box with a word in it, and a tool to look.

Each line of the data is a task, {"word": "…"}. The model may answer at once, which is a guess, or call the tool
`look` first. The protocol is in docs/environments.md.
"""

import json
import sys

LOOK = {
    "type": "function",
    "function": {"name": "look", "description": "Look into the box", "parameters": {}},
}

episodes = {}  # by the id of the request that started them


def start(request):
    episodes[request["id"]] = request["task"]["word"]
    question = {"role": "user", "content": "What is in the box?"}
    return {"messages": [question], "tools": [LOOK]}


def step(request):
    word = episodes[request["episode"]]
    message = request["message"]
    calls = message.get("tool_calls", [])
    if calls and calls[0]["function"]["name"] == "look":
        # A little for looking, so that there is something to learn before the answer is right.
        return {
            "messages": [{"role": "tool", "content": word}],
            "reward": 0.5,
            "metrics": {"looks": 1},
        }
    del episodes[request["episode"]]
    right = message["content"].strip() == word
    return {"done": True, "reward": float(right), "metrics": {"looks": 0}}


for line in sys.stdin:
    request = json.loads(line)
    if request["type"] == "end":  # given up: a limit, or the end of the run; nobody waits for an answer
        episodes.pop(request["episode"], None)
        continue
    answer = start(request) if request["type"] == "start" else step(request)
    print(json.dumps({"id": request["id"], **answer}), flush=True)
