"""Guess a number from 1 to 4, with hints: an environment for `tinkrs train rl --env-command 'python3 env.py'`.

Each line of the data is {"number": N}. A right guess earns 1, and less the later it comes; after three wrong ones, or an
answer that is no number, the game is over.
"""

import json
import sys

games = {}  # by the id of the request that started them


def start(request):
    games[request["id"]] = {"number": request["task"]["number"], "guesses": 0}
    return {"messages": [{"role": "user", "content": "Guess my number!"}]}


def step(request):
    game = games[request["episode"]]
    text = request["message"]["content"].strip()
    game["guesses"] += 1
    right = text == str(game["number"])
    if right or not text.isdigit() or game["guesses"] == 3:
        del games[request["episode"]]
        reward = 1.25 - 0.25 * game["guesses"] if right else 0.0
        return {"done": True, "reward": reward, "metrics": {"won": float(right)}}
    hint = "Higher." if int(text) < game["number"] else "Lower."
    return {"messages": [{"role": "user", "content": hint}], "metrics": {"won": 0.0}}


for line in sys.stdin:
    request = json.loads(line)
    if request["type"] == "end":
        games.pop(request["episode"], None)
        continue
    answer = start(request) if request["type"] == "start" else step(request)
    print(json.dumps({"id": request["id"], **answer}), flush=True)
