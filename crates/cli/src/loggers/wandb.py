# Reads lines of JSON about a run, and tells Weights & Biases.
import json, os, sys

import wandb

line = sys.stdin.readline()
if not line:
    sys.exit()
first = json.loads(line)
if not os.environ.get("WANDB_API_KEY"):
    # Without an account, files that `wandb sync` sends later.
    os.environ.setdefault("WANDB_MODE", "offline")
run = wandb.init(
    project=os.environ.get("WANDB_PROJECT", "tinkrs"),
    name=first["name"],
    # A run that goes on after it was stopped is the same one.
    id=first["id"],
    resume="allow",
    dir=first["run_dir"],
    config=first["config"],
    settings=wandb.Settings(console="off", silent=True),
)
for line in sys.stdin:
    event = json.loads(line)
    # Numbers of an evaluation stand beside those of the step with that number.
    run.log({**event["metrics"], "tinkrs_step": event["step"]})
run.finish()
