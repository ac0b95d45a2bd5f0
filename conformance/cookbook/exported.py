"""The cookbook's way from a checkpoint to a model of Hugging Face's, which must say what the server says.

Its two other ways are left out: the archive of a sampler's checkpoint calls a method that tinker 0.36.0 does not have any
more, and a training checkpoint is exported encrypted, which our server refuses by name.

The first adapter leaves the head alone: the model's head is also its table of embeddings, so that merging changes that
too, and the merged model is another one. The second has every layer, as by default: it is merged all the same, into
the table of embeddings, and has to change that by exactly what the head's adapter is.
"""

import json

import tinker
import torch
from local import MODEL, MODEL_FOLDER
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tinker_cookbook import weights

# Both compute in f32, in different orders.
TOLERANCE = 1e-3


def run(folder, tokenizer):
    """Trains, downloads checkpoints, merges them into their model, and compares."""
    tokens = tokenizer.encode("<|im_start|>user\nWhat does a cow say?<|im_end|>\n<|im_start|>assistant\nArr, the cow")
    service = tinker.ServiceClient()
    return {
        "greatest difference of a log-probability": without_head(service, folder / "without-head", tokens),
        "greatest difference of an embedding": with_head(service, folder / "with-head", tokens),
    }


def train(training, tokens):
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )
    for _ in range(4):
        training.forward_backward([datum], "cross_entropy").result()
        training.optim_step(tinker.AdamParams(learning_rate=5e-3)).result()


def export(training, folder, **options):
    """Downloads the adapter and merges it, by default as the cookbook does by default."""
    external = training.save_weights_external("exported").result().path
    adapter = weights.download(tinker_path=external, output_dir=str(folder / "adapter"))
    weights.build_hf_model(
        base_model=str(MODEL_FOLDER), adapter_path=adapter, output_path=str(folder / "merged"), dtype="float32", **options
    )
    return folder / "adapter", folder / "merged"


def without_head(service, folder, tokens):
    training = service.create_lora_training_client(MODEL, rank=8, train_unembed=False)
    train(training, tokens)
    sampler = training.save_weights_and_get_sampling_client()
    served = torch.tensor(sampler.compute_logprobs(tinker.ModelInput.from_ints(tokens)).result()[1:])
    _, merged = export(training, folder, merge_strategy="full")
    model = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, :-1]
    theirs = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    difference = (theirs - served).abs().max().item()
    assert difference < TOLERANCE, f"log-probabilities differ by {difference}"
    return difference


def with_head(service, folder, tokens):
    training = service.create_lora_training_client(MODEL, rank=8)
    train(training, tokens)
    adapter, merged = export(training, folder)
    tensors = load_file(adapter / "adapter_model.safetensors")
    settings = json.loads((adapter / "adapter_config.json").read_text())
    a, b = (tensors[f"base_model.model.model.unembed_tokens.lora_{part}.weight"] for part in "AB")
    added = settings["lora_alpha"] / settings["r"] * b @ a
    assert added.abs().max() > 0, "the head was not trained"
    table = "model.embed_tokens.weight"
    before = load_file(MODEL_FOLDER / "model.safetensors")[table]
    after = load_file(merged / "model.safetensors")[table].float()
    expected = before.float() + added
    # By default the cookbook keeps the type of the base model's file, so both are rounded to it.
    allowed = expected.abs() * torch.finfo(before.dtype).eps + TOLERANCE
    difference = (after - expected).abs()
    assert (difference < allowed).all(), f"embeddings differ by {difference.max().item()}"
    assert (after - before.float()).abs().max() > added.abs().max() / 2, "the head's adapter was left out"
    return difference.max().item()
