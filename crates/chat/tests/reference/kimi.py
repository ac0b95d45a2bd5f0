"""Writes a small tokenizer in Kimi's form, and what tiktoken makes of texts with it.

usage: kimi.py   (with tiktoken 0.14.0 and regex; writes into ../data/kimi)

Kimi's repositories have `tiktoken.model` (tokens in base64 with their ranks), special tokens in `tokenizer_config.json`,
and the pattern that cuts text in Python code of their own. The vocabulary here is made of the texts below: single bytes,
the pairs that are most frequent, and a few tokens that no merge leads to.
"""

import base64
import collections
import json
import random
from pathlib import Path

import regex
import tiktoken

FOLDER = Path(__file__).resolve().parent.parent / "data" / "kimi"

LETTERS = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
CAPITALS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}*{LETTERS}+{ENDINGS}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}+{LETTERS}*{ENDINGS}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)

TEXTS = [
    "The weather today is fine, and it's what we've wanted; they'll say so, won't they?",
    "WE'LL SHOUT: I'M HERE AND YOU'RE THERE. McDonald's iPhone HTTPServer camelCaseWord",
    "def add(a, b):\n    return a + b  # 1234567 + 3.14159\n\n\nprint(add(1, 22))\r\n\r\n\tdone",
    "今天天气很好，我们去公园散步吧。漢字とひらがなとカタカナ。abc漢字abc",
    "한국어 문장입니다. Это русский текст. Αυτό είναι ελληνικό. זה עברית. هذا نص عربي. นี่คือข้อความ",
    "e\u0301 cafe\u0301 caf\u00e9 na\u00efve \u01c5 \u02b0 \u2126 \u3005 \u3007 \ufb01 \U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u00bd \u2167 \u0663\u0664\u0665",
    "   leading, trailing   \n  \n\n   and  inner   spaces\u00a0\u3000\u2028x",
    "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|>",
    "[BOS]a<|im_end|>b[EOS] <|im_end <|reserved_token_700|> [PAD]",
    "'s 'S 'T's 'Ll 'VE x'd X'D 漢's '",
    "",
    " ",
    "\n",
]
# Found by no pair of shorter tokens: only as a whole part.
WHOLE = [" indivisible", "漢字", "camel", "..."]

SPECIAL = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|im_end|>",
    3: "<|im_user|>",
    4: "<|im_assistant|>",
    7: "<|start_header_id|>",
    8: "<|end_header_id|>",
    10: "[EOT]",
    11: "<|im_system|>",
    17: "<|im_middle|>",
    254: "[UNK]",
    255: "[PAD]",
}
RESERVED = 256
MERGES = 320


def vocabulary():
    ranks = {bytes([byte]): byte for byte in range(256)}
    parts = [part for text in TEXTS for part in regex.findall(f"(?V1){PATTERN}", text)]
    words = [[bytes([byte]) for byte in part.encode()] for part in parts]
    while len(ranks) < 256 + MERGES:
        pairs = collections.Counter(pair for word in words for pair in zip(word, word[1:]))
        # Ties in a fixed order.
        (left, right), _ = max(pairs.items(), key=lambda item: (item[1], item[0]))
        ranks[left + right] = len(ranks)
        for word in words:
            for at in range(len(word) - 2, -1, -1):
                if at + 1 < len(word) and word[at] == left and word[at + 1] == right:
                    word[at : at + 2] = [left + right]
    for text in WHOLE:
        ranks.setdefault(text.encode(), len(ranks))
    return ranks


def random_texts():
    generator = random.Random(7)
    parts = ["a", "B", "é", "漢", "字", "の", "1", "23", " ", "  ", "\n", "\r\n", "\t", "'s", "'LL", ".", "…", "/", "_", "ж", "\u0301"]
    parts += ["\U0001f600", "\u3000", "한", "ʰ", "ǅ", "Ⅷ", "<|im_end|>", "[", "indivisible", "the", "HTTP"]
    for _ in range(200):
        yield "".join(generator.choices(parts, k=generator.randrange(1, 16)))


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    ranks = vocabulary()
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (FOLDER / "tiktoken.model").write_text("".join(lines))
    first = len(ranks)
    decoder = {
        str(first + at): {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": at != 17}
        for at, text in SPECIAL.items()
    }
    config = {
        "added_tokens_decoder": decoder,
        "additional_special_tokens": ["<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"],
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "pad_token": "[PAD]",
        "tokenizer_class": "TikTokenTokenizer",
        "unk_token": "[UNK]",
    }
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    special = {SPECIAL.get(at, f"<|reserved_token_{first + at}|>"): first + at for at in range(RESERVED)}
    encoding = tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
    texts = TEXTS + [f"one{text}two" for text in WHOLE] + WHOLE + list(random_texts())
    cases = [{"text": text, "tokens": encoding.encode(text, allowed_special="all")} for text in texts]
    for case in cases:
        assert encoding.decode(case["tokens"]) == case["text"]
    golden = {"made_with": f"tiktoken {tiktoken.__version__}", "vocabulary": encoding.n_vocab, "cases": cases}
    body = json.dumps(golden, ensure_ascii=True).replace('{"text"', '\n{"text"')
    (FOLDER / "golden.json").write_text(body + "\n")


main()
