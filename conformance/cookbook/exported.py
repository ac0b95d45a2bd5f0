"""The cookbook's way from a checkpoint to a model of Hugging Face's, which must say what the server says.

Its two other ways are left out: the archive of a sampler's checkpoint calls a method that tinker 0.36.0 does not have any
more, and a training checkpoint is exported encrypted, which our server refuses by name. The adapter leaves the head
alone: the model's head is also its table of embeddings, so that merging would change that too.
"""

import tinker
import torch
from local import MODEL, MODEL_FOLDER
from transformers import AutoModelForCausalLM

from tinker_cookbook import weights

# Both compute in f32, in different orders.
TOLERANCE = 1e-3


def run(folder, tokenizer):
    """Trains, downloads the checkpoint, merges it into its model, and compares log-probabilities."""
    tokens = tokenizer.encode("<|im_start|>user\nWhat does a cow say?<|im_end|>\n<|im_start|>assistant\nArr, the cow")
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )
    service = tinker.ServiceClient()
    training = service.create_lora_training_client(MODEL, rank=8, train_unembed=False)
    for _ in range(4):
        training.forward_backward([datum], "cross_entropy").result()
        training.optim_step(tinker.AdamParams(learning_rate=5e-3)).result()
    sampler = training.save_weights_and_get_sampling_client()
    served = torch.tensor(sampler.compute_logprobs(tinker.ModelInput.from_ints(tokens)).result()[1:])

    external = training.save_weights_external("exported").result().path
    adapter = weights.download(tinker_path=external, output_dir=str(folder / "adapter"))
    merged = folder / "merged"
    weights.build_hf_model(
        base_model=str(MODEL_FOLDER),
        adapter_path=adapter,
        output_path=str(merged),
        dtype="float32",
        merge_strategy="full",
    )
    model = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, :-1]
    theirs = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    difference = (theirs - served).abs().max().item()
    assert difference < TOLERANCE, f"log-probabilities differ by {difference}"
    return {"greatest difference of a log-probability": difference}
