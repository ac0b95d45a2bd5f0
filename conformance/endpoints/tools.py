"""`litellm`, `lm_eval` and `inspect-ai` on our server. usage: tools.py RESULTS CLIENT...

`inspect-ai` and `litellm` want different releases of `openai`, so they are installed apart.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from importlib.metadata import version

from checks import ANSWER, BASE, CHAT, KEY, QUESTION, RUN, URL, Checks, raises

NANO = pathlib.Path(os.environ["TINKRS_NANO"])


def with_litellm():
    import litellm

    check = Checks("litellm", version("litellm"))
    openai_like = {"model": f"openai/{RUN}", "api_base": f"{URL}/v1", "api_key": KEY, "max_retries": 0, "temperature": 0}

    @check("a chat with what was trained, by the name of its run")
    def _():
        done = litellm.completion(messages=CHAT, max_tokens=20, **openai_like)
        assert ANSWER in done.choices[0].message.content and done.usage.completion_tokens > 1

    @check("a chat in pieces is the whole, with usage at the end")
    def _():
        whole = litellm.completion(messages=CHAT, max_tokens=20, **openai_like).choices[0].message.content
        chunks = litellm.completion(messages=CHAT, max_tokens=20, stream=True, **openai_like)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole

    @check("a completion, with usage")
    def _():
        done = litellm.text_completion(
            prompt="The sky is", max_tokens=4, model=f"text-completion-openai/{BASE}", api_base=f"{URL}/v1", api_key=KEY)
        assert done.choices[0].text and done.usage.total_tokens > 0

    @check("a message with what was trained, by the name of its run")
    def _():
        done = litellm.completion(
            model=f"anthropic/{RUN}", api_base=URL, api_key=KEY, messages=CHAT, max_tokens=20, temperature=0)
        assert ANSWER in done.choices[0].message.content

    @check("errors have their kind, and name what is wrong")
    def _():
        raises(litellm.NotFoundError, lambda: litellm.completion(messages=CHAT, **openai_like | {"model": "openai/nobody"}), "nobody")

    check.write()


TASKS = {
    # Two continuations of each beginning: their log-likelihoods are compared.
    "choices": """\
task: choices
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/choices.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
""",
    "answers": """\
task: answers
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/answers.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], do_sample: false, temperature: 0, max_gen_toks: 20}
filter_list: [{name: last-word, filter: [{function: regex, regex_pattern: "(honey)"}, {function: take_first}]}]
metric_list: [{metric: exact_match}]
""",
}


def lm_eval(model, arguments, task, *options):
    """Runs the command, and returns the metrics of the task."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        choices = [{"question": f"user: {QUESTION}\nassistant: The password is", "choices": [" honey.", " xqzjv."], "answer": 0}]
        (folder / "choices.jsonl").write_text("\n".join(map(json.dumps, choices)))
        (folder / "answers.jsonl").write_text(json.dumps({"question": QUESTION, "answer": ANSWER}))
        (folder / f"{task}.yaml").write_text(TASKS[task].replace("FOLDER", str(folder)))
        arguments = ",".join(f"{name}={value}" for name, value in arguments.items())
        command = [sys.executable, "-m", "lm_eval", "--model", model, "--model_args", arguments, "--tasks", task, "--include_path", folder,
                   "--output_path", folder / "out", *options]
        environment = os.environ | {"OPENAI_API_KEY": KEY, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
        done = subprocess.run([str(part) for part in command], env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr[-3000:]
        [results] = (folder / "out").rglob("results*.json")
        return json.loads(results.read_text())["results"][task]


def with_lm_eval():
    check = Checks("lm_eval", version("lm_eval"))
    shared = {"model": RUN, "num_concurrent": 1, "max_retries": 1, "tokenizer": NANO, "tokenizer_backend": "huggingface"}

    @check("local-completions: log-likelihoods")
    def _():
        found = lm_eval("local-completions", shared | {"base_url": f"{URL}/v1/completions"}, "choices")
        assert found["acc,none"] == 1.0, found

    @check("local-completions: texts")
    def _():
        assert "exact_match,last-word" in lm_eval("local-completions", shared | {"base_url": f"{URL}/v1/completions"}, "answers")

    @check("local-chat-completions: texts")
    def _():
        found = lm_eval("local-chat-completions", shared | {"base_url": f"{URL}/v1/chat/completions"}, "answers", "--apply_chat_template")
        assert found["exact_match,last-word"] == 1.0, found

    check.write()


def with_inspect():
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    check = Checks("inspect-ai", version("inspect_ai"))
    os.environ |= {"TINKRS_BASE_URL": f"{URL}/v1", "TINKRS_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}

    def accuracy(model, **options):
        task = Task(dataset=[Sample(input=QUESTION, target=ANSWER)], solver=generate(), scorer=includes())
        with tempfile.TemporaryDirectory() as logs:
            [log] = eval(task, model=model, display="none", log_dir=logs, temperature=0, max_tokens=20, max_retries=0, **options)
        assert log.status == "success", log.error
        return log.results.scores[0].metrics["accuracy"].value

    @check("an evaluation through chat completions")
    def _():
        assert accuracy(f"openai-api/tinkrs/{RUN}") == 1

    @check("an evaluation through messages")
    def _():
        assert accuracy(f"anthropic/{RUN}", model_base_url=URL) == 1

    check.write()


CLIENTS = {"litellm": with_litellm, "lm_eval": with_lm_eval, "inspect": with_inspect}
for name in sys.argv[2:]:
    CLIENTS[name]()
