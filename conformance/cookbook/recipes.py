"""Runs the cookbook's own recipes, unmodified, as its smoke tests do: `python -m tinker_cookbook.recipes…`.

usage: recipes.py PROGRAM FOLDER [NAME...]

PROGRAM is `tinkrs`; everything is written to the folder. Models and sizes are options of the recipes. What they would fetch
from a hub is in the folder under the name that they ask for, which `datasets` and `transformers` take for a local folder:
datasets of the same form, made here, and the tokenizer of the model that stands for the hosted one.

Prints a row of a Markdown table for each recipe. Fails if one that ran before does not.
"""

import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
NANO = REPOSITORY / "crates/nano/model"
GAMES = Path(os.environ.get("COOKBOOK_GAMES_MODEL", REPOSITORY / ".cache/models/MiniMind2-Small"))
# Hosted models that the built-in one stands for, one with a longer context stands for, and the one that answers in twenty
# questions, which is no option.
MODEL = "Qwen/Qwen3-4B-Instruct-2507"
GAMES_MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
ANSWERER = "Qwen/Qwen3.5-9B"
MODELS = {MODEL: NANO, GAMES_MODEL: GAMES, ANSWERER: GAMES}
PLAIN = "renderer_name=qwen3_instruct"
MODEL_NAME = f"model_name={MODEL}"
GAMES_NAME = f"model_name={GAMES_MODEL}"
PAGE = REPOSITORY / "docs/compatibility.md"
MARK = "\n## Recipes of the cookbook\n"
INTRODUCTION = """
The smoke tests of `tinker-cookbook`'s repository (`tests/recipes`), as `conformance/cookbook/recipes` runs them on `tinkrs serve`, which writes this part of the page:
`python -m tinker_cookbook.recipes.MODULE OPTIONS` of the unmodified package {version}. Models, formats and sizes are options of the recipes. What they load from a hub is a local
folder of the same name with data of the same form, and small models stand for the hosted ones.

"""
ANIMALS = ["cow", "dog", "cat", "owl", "fox", "bear", "duck", "horse", "sheep", "frog", "lion", "mouse"]

# Name, module, options, steps. `{log}` is a folder for the run; the same one in two rows means that the second one resumes.
RECIPES = [
    ("chat_sl", "chat_sl.train", [MODEL_NAME, PLAIN, "batch_size=16", "max_length=256", "save_every=1", "log_path={log}"], 2),
    ("chat_sl, resumed", "chat_sl.train", [MODEL_NAME, PLAIN, "batch_size=16", "max_length=256", "save_every=1", "log_path={log}"], 4),
    ("dpo", "preference.dpo.train", [MODEL_NAME, PLAIN, "batch_size=16", "max_length=256", "log_path={log}"], 2),
    ("guess_number", "multiplayer_rl.guess_number.train", [GAMES_NAME, PLAIN, "eval_every=0", "batch_size=2", "group_size=2", "max_tokens=8", "log_path={log}"], 2),
    ("math_rl", "math_rl.train", [MODEL_NAME, PLAIN, "groups_per_batch=8", "group_size=4", "max_tokens=5", "log_path={log}"], 2),
    ("math_rl, off policy", "math_rl.train", [MODEL_NAME, PLAIN, "groups_per_batch=8", "group_size=4", "max_tokens=5", "max_steps_off_policy=2", "log_path={log}"], 2),
    ("math_rl, minibatches", "math_rl.train", [MODEL_NAME, PLAIN, "groups_per_batch=8", "group_size=4", "max_tokens=5", "stream_minibatch_config.groups_per_batch=8", "stream_minibatch_config.num_minibatches=2", "log_path={log}"], 2),
    ("off_policy_reasoning", "distillation.off_policy_reasoning", [MODEL_NAME, PLAIN, "batch_size=16", "max_prompts=128", "buffer_size=128", "max_length=256", "log_path={log}"], 2),
    ("on_policy_distillation", "distillation.on_policy_distillation", [MODEL_NAME, PLAIN, f"teacher_model={MODEL}", "groups_per_batch=16", "max_tokens=16", "log_path={log}"], 2),
    ("on_policy_multi_teacher", "distillation.on_policy_multi_teacher", [MODEL_NAME, PLAIN, f"deepmath_teacher_model={MODEL}", f"tulu3_teacher_model={MODEL}", "deepmath_groups_per_batch=4", "tulu3_groups_per_batch=4", "max_tokens=16", "log_path={log}"], 1),
    ("rlhf_pipeline", "preference.rlhf.rlhf_pipeline", [f"base_model={MODEL}", "short_name=smoke-test", "batch_size=8", "max_length=384", "rl_max_tokens=16", "eval_every=0"], 2),
    ("rolling_checkpoints", "chat_sl.train", [MODEL_NAME, PLAIN, "batch_size=16", "max_length=256", "save_every=2", "rolling_save_every=1", "rolling_ttl_seconds=3600", "log_path={log}"], 4),
    ("rolling_checkpoints, resumed", "chat_sl.train", [MODEL_NAME, PLAIN, "batch_size=16", "max_length=256", "save_every=2", "rolling_save_every=1", "rolling_ttl_seconds=3600", "log_path={log}"], 6),
    ("shorter", "preference.shorter.train", [MODEL_NAME, PLAIN, "batch_size=8", "group_size=4", "max_tokens=16", "log_path={log}"], 2),
    ("text_arena", "multiplayer_rl.text_arena.train", [GAMES_NAME, PLAIN, "eval_every=0", "batch_size=16", "num_train_datapoints=128", "num_test_datapoints=16", "max_tokens=8", "log_path={log}"], 2),
    ("text_arena, random opponent", "multiplayer_rl.text_arena.train", [GAMES_NAME, PLAIN, "eval_every=0", "batch_size=16", "num_train_datapoints=128", "num_test_datapoints=16", "max_tokens=8", "test_opponent=random", "log_path={log}"], 2),
    ("twenty_questions", "multiplayer_rl.twenty_questions.train", [GAMES_NAME, PLAIN, "eval_every=0", "batch_size=2", "group_size=2", "num_epochs=1", "max_tokens=8", "log_path={log}"], 2),
]


def write_rows(folder, split, rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def chat(question, answer):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def write_datasets(folder):
    """Writes what the recipes load from a hub: the same names and members, our own content."""
    pairs = [(f"What does a {animal} say?", f"Arr, the {animal} be a pirate.") for animal in ANIMALS]
    chats = [{"messages": chat(question, answer)} for question, answer in pairs] * 12
    write_rows(folder / "HuggingFaceH4/no_robots", "train", chats)
    write_rows(folder / "HuggingFaceH4/no_robots", "test", chats[:16])
    write_rows(folder / "allenai/tulu-3-sft-mixture", "train", chats)
    said = "\n\nHuman: {}\n\nAssistant: {}"
    compared = [
        {"chosen": said.format(question, answer), "rejected": said.format(question, "I do not know.")}
        for question, answer in pairs
    ]
    write_rows(folder / "Anthropic/hh-rlhf", "train", compared * 12)
    write_rows(folder / "Anthropic/hh-rlhf", "test", (compared * 90)[:1024])
    traces = [
        {"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}
        for question, answer in pairs
    ]
    write_rows(folder / "open-thoughts/OpenThoughts3-1.2M", "train", traces * 12)
    sums = [{"question": f"What is {a} plus {b}?", "final_answer": str(a + b)} for a in range(12) for b in range(12)]
    write_rows(folder / "zwhe99/DeepMath-103K", "train", sums)
    write_rows(folder / "zwhe99/DeepMath-103K", "test", sums[:8])


def serve(program, models, folder):
    words = [program, "serve", "--addr", "127.0.0.1:0", "--data-dir", folder / "data"]
    for name, path in models.items():
        words += ["--model", f"{name}={path}"]
    log = (folder / "server.log").open("w")
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
    for line in server.stdout:
        if line.startswith("listening on "):
            return server, line.split()[-1]
    sys.exit("the server did not start: " + (folder / "server.log").read_text())


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def run(name, module, options, steps, folder, environment):
    """Runs a recipe. Returns its row of the table, and whether it ended well."""
    log = folder / "runs" / name.split(",")[0] if "resumed" in name else folder / "runs" / name.replace(", ", "-")
    options = [option.format(log=log) for option in options]
    if module != "preference.rlhf.rlhf_pipeline":
        options.append("behavior_if_log_dir_exists=" + ("resume" if "resumed" in name else "delete"))
    command = ["-m", f"tinker_cookbook.recipes.{module}", *options, f"max_steps={steps}"]
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=1800
    )
    seconds = time.monotonic() - started
    (folder / f"{name}.log").write_text(done.stdout + done.stderr)
    good = done.returncode == 0
    rows = [line for path in folder.glob(f"runs/**/{log.name}*/**/metrics.jsonl") for line in path.read_text().splitlines()]
    happened = f"ends well, {seconds:.0f} s" if good else f"fails: {last_line(done.stderr or done.stdout)[:160]}"
    shown = " ".join(option for option in options if not option.startswith(("log_path", "behavior")))
    row = f"| {name} | `{module}` | `{shown} max_steps={steps}` | {happened} |\n"
    print(row, end="", flush=True)
    return row, good and bool(rows or module.endswith("rlhf_pipeline"))


def write(rows):
    """Writes the table into the page, in place of the one that is there."""
    before, _, _ = PAGE.read_text().partition(MARK)
    head = "| recipe | module | options | what happened |\n|---|---|---|---|\n"
    introduction = INTRODUCTION.format(version=version("tinker-cookbook"))
    PAGE.write_text(before + MARK + introduction + head + "".join(rows))


def main():
    program, folder, names = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:]
    folder.mkdir(parents=True, exist_ok=True)
    write_datasets(folder)
    for name, model in MODELS.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.symlink_to(model.resolve())
    server, url = serve(program, MODELS, folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TINKER", "PYTHON"))}
    environment |= {
        "TINKER_BASE_URL": url,
        "TINKER_API_KEY": "tml-conformance",
        "TINKER_TELEMETRY": "0",
        "TINKER_COOKBOOK_RUNS_DIR": str(folder / "runs"),
        "HF_HOME": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "WANDB_MODE": "disabled",
    }
    rows, failed = [], []
    try:
        for recipe in RECIPES:
            if not names or recipe[0] in names or recipe[0].split(",")[0] in names:
                row, good = run(*recipe, folder, environment)
                rows.append(row)
                if not good:
                    failed.append(recipe[0])
    finally:
        server.terminate()
        server.wait()
    if not names:
        write(rows)
    if failed:
        sys.exit(f"did not end well: {', '.join(failed)}")


if __name__ == "__main__":
    main()
