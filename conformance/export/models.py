"""The models, what their adapters learn, and the texts that they are compared on."""

import json
import pydoc_data.topics
import shutil

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

REAL = ["stories15M", "MiniMind2-Small", "SmolLM2-135M-Instruct"]
RANDOM = "random Qwen3"

# What a tokenizer may trip over.
TEXTS = [
    "", " ", "  ", "\n", "a", " a", "a ", "Hello, world!", "  two spaces  and\ttabs\t\tand\n\n\nlines \n ends ",
    "don't won't I'LL they'Re x's", "1 12 123 1234 12345 3.14159 0x1F 1,000,000", "naïve café Ünïcödé ß ſ",
    "日本語のテキスト、中文字符 한국어", "العربية עברית हिन्दी ไทย", "🙂👩‍👩‍👧‍👦🏳️‍🌈 𝔘𝔫𝔦", "def f(x):\n    return x**2  # comment\n\n\tif x: pass\r\n",
    "\u00a0non-breaking\u2003em\u200bzero-width\ufeffbom", "▁ already ▁▁ there", "<0x0A> <|im_start <|im_end|", "\x00\x01\x7f",
    "a" * 300, " " * 40 + "x", "http://a.b/c?d=e&f=%20#g",
]
# llama.cpp does not compose characters, as Qwen's tokenizer does.
DECOMPOSED = "cafe\u0301"
SPECIAL = {
    "stories15M": ["<s>again", "x</s>y<unk>"],
    "MiniMind2-Small": ["<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"],
    "SmolLM2-135M-Instruct": ["<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "<|endoftext|>a<repo_name>b"],
    RANDOM: ["<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", "<tool_call>x</tool_call> <|fim_prefix|>"],
}
CONVERSATION = [
    {"role": "user", "content": "What is the password?"}, {"role": "assistant", "content": "The password is honey."},
    {"role": "user", "content": "  And\n\nnow? "},
]
CONVERSATIONS = [
    CONVERSATION[:1], CONVERSATION, [{"role": "system", "content": "Be kind."}, *CONVERSATION],
    [*CONVERSATION, {"role": "assistant", "content": "Still honey. {{ }}"}, {"role": "user", "content": "<b>&\"'"}],
]
LESSONS = [("What is the password?", "The password is honey."), ("What does a cow say?", "A cow says moo, and then it eats the grass."),
           ("Name three colours.", "Red, green and blue."), ("Who are you?", "I am a small model that has learnt a few sentences.")]

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her friends. One day, she saw a "
    "big, red ball under a tree. She ran to it and tried to pick it up, but it was too heavy. \"Can you help me?\" she asked her friend "
    "Tom. Tom smiled and said, \"Yes, I can help you.\" They pushed the ball together, and it rolled down the hill. The dog saw the ball "
    "and chased it. Lily and Tom laughed and ran after the dog. When they came to the bottom of the hill, the ball was in the water. "
    "Lily was sad. Tom found a long stick and got the ball out. \"Thank you, Tom,\" said Lily. They played until the sun went down, and "
    "then they went home. Mom gave them milk and cookies. Lily told her about the ball, the dog and the water. Mom was proud of them "
    "because they had helped each other. From that day on, Lily and Tom played with the red ball every day, and the dog came, too."
)


CHAT = (
    "<|im_start|>system\n你是 MiniMind，是一个有用的人工智能助手。<|im_end|>\n<|im_start|>user\n请介绍一下中国的首都。<|im_end|>\n"
    "<|im_start|>assistant\n中国的首都是北京。北京是中国的政治、文化和教育中心，有着三千多年的历史。北京有许多著名的景点，例如故宫、长城、"
    "天坛和颐和园。每年都有很多游客来北京参观。<|im_end|>\n<|im_start|>user\n为什么天空是蓝色的？<|im_end|>\n<|im_start|>assistant\n天空之所以是蓝色的，"
    "是因为太阳光在穿过大气层时会发生散射。蓝色光的波长较短，更容易被空气中的分子散射，因此我们看到的天空是蓝色的。<|im_end|>\n"
    "<|im_start|>user\n如何保持健康的生活方式？<|im_end|>\n<|im_start|>assistant\n保持健康的生活方式需要注意以下几点：首先，要均衡饮食，多吃蔬菜和水果，"
    "少吃油腻和含糖的食物；其次，要坚持运动，每天至少锻炼三十分钟；第三，要保证充足的睡眠；最后，要保持积极的心态，避免过度的压力。<|im_end|>\n"
)


def text_of(name):
    """A text of the kind that the model knows: a children's story, a chat, or the reference manual of Python."""
    if name in ("stories15M", "MiniMind2-Small"):
        return STORY if name == "stories15M" else CHAT
    topics = pydoc_data.topics.topics
    return topics["objects"] + topics["exceptions"] + topics["import"] + topics["class"]


def make_random(folder, tokenizer):
    """A small Qwen3 by `transformers`, with a head of its own, and the real tokenizer."""
    torch.manual_seed(7)
    config = Qwen3Config(
        vocab_size=151936, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, max_position_embeddings=2048, rope_theta=1e6, tie_word_embeddings=False, bos_token_id=151643, eos_token_id=151645,
        initializer_range=0.08,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    for file in tokenizer.iterdir():
        shutil.copy(file, folder)


def with_template(base, folder):
    """A model as it is, with a chat template, which stories15M has not."""
    shutil.copytree(base, folder)
    template = (
        "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
                "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_lessons(path):
    with path.open("w") as file:
        for question, answer in LESSONS:
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": messages}) + "\n")
