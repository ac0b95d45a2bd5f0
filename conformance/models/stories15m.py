"""TinyStories' Llama of 15 million weights, from a package of llama2.c for browsers.

Its data file has the checkpoint first (seven 32-bit integers, then f32 tensors in a fixed order) and the tokenizer last.
"""

import struct

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from folder import LAYER, llama, rotary_halves, write_model

CHECKPOINT_BYTES, TOKENIZER_BYTES = 60_816_028, 432_717
SPACE = "\u2581"  # How SentencePiece writes a space.
SPECIAL, BYTES = ["<unk>", "<s>", "</s>"], [f"<0x{byte:02X}>" for byte in range(256)]


def write(package, folder):
    data = (package / "package/src/llama2.data").read_bytes()
    hidden, inner, layers, heads, kv_heads, vocab, context = struct.unpack_from("<7i", data)
    numbers = np.frombuffer(data[28:CHECKPOINT_BYTES], "<f4")
    kv = kv_heads * hidden // heads
    shapes = [
        ("embedding", (vocab, hidden)), ("attention_norm", (layers, hidden)), ("q", (layers, hidden, hidden)),
        ("k", (layers, kv, hidden)), ("v", (layers, kv, hidden)), ("o", (layers, hidden, hidden)),
        ("feed_forward_norm", (layers, hidden)), ("gate", (layers, inner, hidden)), ("down", (layers, hidden, inner)),
        ("up", (layers, inner, hidden)), ("norm", (hidden,)),
    ]
    tensors, start = {}, 0
    for name, shape in shapes:
        end = start + int(np.prod(shape))
        tensors[name], start = numbers[start:end].reshape(shape), end

    weights = {"model.embed_tokens.weight": tensors["embedding"], "model.norm.weight": tensors["norm"]}
    for layer in range(layers):
        for part, name in LAYER.items():
            weight = tensors[part][layer]
            if part in ("q", "k"):
                weight = rotary_halves(weight, heads if part == "q" else kv_heads)
            weights[f"model.layers.{layer}.{name}.weight"] = weight
    tokenizer(data[-TOKENIZER_BYTES:], vocab).save(str(folder / "tokenizer.json"))
    config = llama(hidden=hidden, inner=inner, layers=layers, heads=heads, kv_heads=kv_heads, vocab=vocab,
                   context=context, theta=10_000.0)
    write_model(folder, config, weights, np.float32)


def read_pieces(data, count):
    """Reads score, length and bytes of each piece, behind four bytes for the longest one's length."""
    at = 4
    for _ in range(count):
        score, length = struct.unpack_from("<fi", data, at)
        at += 8
        yield data[at:at + length].decode(errors="replace").replace(" ", SPACE), score
        at += length


def tokenizer(data, count):
    """SentencePiece's BPE joins the pair whose whole has the highest score. So each way to cut a piece into two known
    ones is a merge, and the merges are ranked by the score of the whole."""
    pieces, scores = zip(*read_pieces(data, count))
    pieces = [*SPECIAL, *BYTES, *pieces[len(SPECIAL) + len(BYTES):]]
    ids = {piece: id for id, piece in enumerate(pieces)}
    merges = []
    for id in range(len(SPECIAL) + len(BYTES), count):
        piece = pieces[id]
        cuts = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        cuts = sorted((cut for cut in cuts if cut[0] in ids and cut[1] in ids), key=lambda cut: (ids[cut[0]], ids[cut[1]]))
        merges += [(scores[id], cut) for cut in cuts]
    merges.sort(key=lambda merge: -merge[0])
    bpe = models.BPE(vocab=ids, merges=[cut for _, cut in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    made = Tokenizer(bpe)
    made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    made.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(),
                                      decoders.Strip(" ", 1, 0)])
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made
