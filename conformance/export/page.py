"""The part of docs/numerics.md about exports."""

import math

MARK = "\n## Exports\n"

HEAD = """
How far other tools are from our engine (f32) on what `tinkrs export` writes, of a model with an adapter that was trained for a few steps on
every linear layer and the head: the greatest difference of one log-probability on a text of up to {window} tokens. Written by
`conformance/export/run --write` with `transformers` {transformers}, `peft` {peft}, PyTorch {torch} and llama.cpp of `llama-cpp-python` {llama}.

"""

AFTER_DIFFERENCES = """
- `transformers` reads the merged folder (f32), `peft` the `peft` export on the base model, llama.cpp a GGUF file of the base model (f32) with the
  `gguf-adapter`, and GGUF files of the merged model.
- llama.cpp is compared with our engine on the numbers of the same file, so that a quantised file counts what the two compute, not what was
  rounded. It rounds activations to the type of the weights (f16, bf16, eight bits for quantised ones), and we do not: that is what grows.
- A GGUF adapter has no head where the head is the embedding: there, both sides leave the head's adapter out.
- Tokens: {texts} texts (white space, digits, contractions, scripts, emoji, control characters, special tokens, a conversation by the chat template)
  have the same ids by our tokenizer of the folder, by our tokenizer of the GGUF file, and by llama.cpp of the GGUF file: SentencePiece
  (stories15M) and byte-level BPE (the others). One thing differs and cannot be helped: llama.cpp does not compose characters (NFC), as Qwen's tokenizer does.
- The Modelfile for Ollama gives the same text as the model's chat template, by Go's own templates, for four conversations with each model.
- Exports of stories15M have a chat template that the script adds, for the model has none.

### What quantising costs

Perplexity of a text that the model knows (a children's story for stories15M, a chat for MiniMind2, the reference manual of Python for SmolLM2; windows of
{window} tokens), of the base model, by our engine and by llama.cpp. "llama.cpp's file" is the same f32 GGUF file quantised by its own
`llama_model_quantize`, and "noise" the squared error of our blocks over that of its own.

"""

AFTER_QUANTISED = """
Tensors of F32, Q8_0 and Q5_0 are equal to llama.cpp's, bit for bit, and each tensor has the format that it has in llama.cpp's file. Q4_K and Q6_K are
searched, so their blocks differ; the script allows 2 % more noise and {loss} more log-perplexity than llama.cpp's file has. Rows of stories15M (288) and
SmolLM2 (576) are no multiple of 256: most of their "q4_k_m" is Q5_0 and Q8_0. Token ids by the tokenizer of llama.cpp's files are ours, too.
"""


def versions():
    import llama_cpp
    import peft
    import torch
    import transformers

    return {"transformers": transformers.__version__, "peft": peft.__version__, "torch": torch.__version__.split("+")[0],
            "llama": llama_cpp.__version__}


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def differences(found, allowed):
    columns = list(allowed)
    rows = [[name] + [f"{result['differences'][column]:.1e}" for column in columns] for name, result in found.items()]
    rows.append(["allowed"] + [f"{allowed[column]:g}" for column in columns])
    return table(["model", *columns], rows)


def quantised(found):
    rows = []
    for name, result in found.items():
        for row in result["quantised"]:
            searched = [(kind, blocks) for kind, blocks in row.get("blocks", {}).items() if blocks.is_searched]
            number = lambda key: f"{row[key]:.3f}" if key in row else "–"
            rows.append([
                name, row["how"], f"{row['bytes'] / 1e6:.0f} MB", number("ours"), f"{math.log(row['ours'] / row['exact']):+.4f}",
                number("ours in llama.cpp"), number("theirs"), number("theirs in llama.cpp"),
                ", ".join(f"{kind} {blocks.noise:.3f}" for kind, blocks in searched) or "–",
            ])
    return table(["model", "`--quantize`", "size", "our file, our engine", "log-perplexity over f32", "our file, llama.cpp",
                  "llama.cpp's file, our engine", "llama.cpp's file, llama.cpp", "noise"], rows)


def write(path, found, allowed, window, loss):
    text = path.read_text().split(MARK)[0]
    texts = max(result["texts"] for result in found.values())
    text += MARK + HEAD.format(window=window, **versions()) + differences(found, allowed)
    text += AFTER_DIFFERENCES.format(texts=texts, window=window) + quantised(found) + AFTER_QUANTISED.format(loss=loss)
    path.write_text(text)
