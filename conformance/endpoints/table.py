"""Compares what the clients did with docs/compatibility.md, or writes it there.

usage: table.py RESULTS PAGE [--write]
"""

import json
import pathlib
import sys

MARK = "\n## Clients of other APIs\n"
# What follows on the page is written by conformance/cookbook/recipes.
RECIPES = "\n## Recipes of the cookbook\n"
INTRODUCTION = """
What unmodified clients of the OpenAI and Anthropic APIs do on `tinkrs serve`, as `conformance/endpoints/run` saw it, which writes this part of the page.
✓ works, ✗ does not, empty: not asked of that client.

"""
ORDER = ["openai Python", "openai npm", "anthropic Python", "anthropic npm", "litellm", "lm_eval", "inspect-ai"]
MARKS = {True: "✓", False: "✗", None: ""}


def table(found):
    names = dict.fromkeys(name for result in found for name in result["outcomes"])
    rows = [[""] + [f"{result['client']} {result['version']}" for result in found], ["---"] * (len(found) + 1)]
    rows += [[name] + [MARKS[result["outcomes"].get(name)] for result in found] for name in names]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def promised(part):
    """What the page says that works: pairs of client and check."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")]
    clients = [cell.rsplit(" ", 1)[0] for cell in rows[0][1:]] if rows else []
    return {(client, row[0]) for row in rows[2:] for client, mark in zip(clients, row[1:]) if mark == MARKS[True]}


def main():
    results, page = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    found = [json.loads(file.read_text()) for file in results.glob("*.json")]
    found.sort(key=lambda result: ORDER.index(result["client"]))
    outcomes = {(result["client"], name): is_right for result in found for name, is_right in result["outcomes"].items()}
    print(f"{sum(outcomes.values())} of {len(outcomes)} checks of {len(found)} clients passed")
    before, _, part = page.read_text().partition(MARK)
    part, mark, recipes = part.partition(RECIPES)
    if "--write" in sys.argv:
        page.write_text(before + MARK + INTRODUCTION + table(found) + mark + recipes)
        broken = [check for check, is_right in outcomes.items() if not is_right]
    else:
        clients = {client for client, _ in outcomes}
        broken = [check for check in promised(part) if check[0] in clients and not outcomes.get(check)]
        if not part:
            sys.exit(f"{page} says nothing about these clients: run conformance/endpoints/run")
    if broken:
        sys.exit("failed: " + "; ".join(f"{client}: {name}" for client, name in sorted(broken)))


main()
