"""Writes four tiny random models with an adapter each, and what PyTorch computes with them.

For each model, `expected.safetensors` holds (sequence s is 0 or 1; targets are the next tokens):

  tokens.s, targets.s, weights.s   the data: input tokens, target tokens, weight of each target
  logits.s, logprobs.s             of the base model; logprobs are those of the targets
  adapted.logits.s                 with the adapter in `adapter/`
  full.loss                        as `loss` below, of the base model
  full.grad.<tensor>               gradient of that with respect to each tensor of the base model
  loss                             -sum(weights * logprobs) over both sequences, with the adapter
  grad.<parameter>                 gradient of that loss with respect to each A and B
  adamw.<variant>.losses, .norms   loss and global gradient norm of three steps
  adamw.<variant>.<parameter>      each A and B after the three steps

Parameters are named as in `adapter_model.safetensors`.
"""

import json
import shutil
import warnings
from pathlib import Path

import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

HERE = Path(__file__).parent
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SHAPE = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
             vocab_size=96, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=None)
# The base is small so that, of the four rotating pairs, one is kept, one blended and two divided.
LLAMA3 = dict(rope_type="llama3", rope_theta=100.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)


def plain(theta):
    return dict(rope_type="default", rope_theta=theta)


# Name, configuration, and whether the adapter covers the head too.
MODELS = [
    ("tiny-llama", LlamaConfig(**SHAPE, rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters=plain(1e4)), False),
    ("tiny-llama3", LlamaConfig(**SHAPE, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=LLAMA3), True),
    ("tiny-qwen2", Qwen2Config(**SHAPE, rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters=plain(1e6)), False),
    ("tiny-qwen3", Qwen3Config(**SHAPE, rms_norm_eps=1e-6, tie_word_embeddings=True, head_dim=16,
                               rope_parameters=plain(1e6)), True),
]
RANK, ALPHA, LEARNING_RATE, STEPS = 4, 32, 1e-2, 3
VARIANTS = {"plain": dict(weight_decay=0.0, clip=0.0), "decay": dict(weight_decay=0.1, clip=0.0),
            "clip": dict(weight_decay=0.01, clip=0.5)}


def randomise(model):
    """Draws weights that keep activations of order one; the usual initialisation is too close to zero to test much."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape)
        if name.endswith("norm.weight"):
            parameter.data = 1 + 0.1 * noise
        elif name.endswith("bias"):
            parameter.data = 0.2 * noise
        else:
            parameter.data = noise / parameter.shape[1] ** 0.5


def sequences():
    for length in (17, 9):
        tokens = torch.randint(0, SHAPE["vocab_size"], (length + 1,))
        weights = torch.rand(length) * (torch.rand(length) > 0.3)
        yield tokens[:-1], tokens[1:], weights


def logits_of(model, tokens):
    return model(input_ids=tokens[None], use_cache=False).logits[0]


def target_logprobs(logits, targets):
    return logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]


def loss_of(model, data):
    return sum(-(w * target_logprobs(logits_of(model, x), y)).sum() for x, y, w in data)


def adapted(folder, with_head):
    """Wraps the model in an adapter whose B is not zero, as it is only at the very start of training."""
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    targets = LINEARS + (["lm_head"] if with_head else [])
    torch.manual_seed(2)
    model = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, task_type="CAUSAL_LM"))
    parameters = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameters[name.replace(".default", "")] = parameter
            parameter.data = torch.randn(parameter.shape) * (0.02 if "lora_B" in name else 0.15)
    return model, parameters


def write(name, config, with_head):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    randomise(base)
    base.save_pretrained(folder)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    (folder / "generation_config.json").unlink(missing_ok=True)

    data, expected = list(sequences()), {}
    with torch.no_grad():
        for s, (tokens, targets, weights) in enumerate(data):
            logits = logits_of(base, tokens)
            expected |= {f"tokens.{s}": tokens, f"targets.{s}": targets, f"weights.{s}": weights,
                         f"logits.{s}": logits, f"logprobs.{s}": target_logprobs(logits, targets)}

    expected["full.loss"] = loss_of(base, data)
    expected["full.loss"].backward()
    expected |= {f"full.grad.{key}": parameter.grad for key, parameter in base.named_parameters()}

    model, parameters = adapted(folder, with_head)
    model.save_pretrained(folder / "adapter", save_embedding_layers=False)
    (folder / "adapter/README.md").unlink()
    settings = folder / "adapter/adapter_config.json"
    written = json.loads(settings.read_text()) | {"base_model_name_or_path": name}
    written["target_modules"].sort()
    settings.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    for s, (tokens, _, _) in enumerate(data):
        expected[f"adapted.logits.{s}"] = logits_of(model, tokens)
    expected["loss"] = loss_of(model, data)
    expected["loss"].backward()
    expected |= {f"grad.{key}": parameter.grad for key, parameter in parameters.items()}

    for variant, settings in VARIANTS.items():
        model, parameters = adapted(folder, with_head)
        optimizer = torch.optim.AdamW(parameters.values(), lr=LEARNING_RATE, betas=(0.9, 0.95), eps=1e-12,
                                      weight_decay=settings["weight_decay"])
        losses, norms = [], []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, data)
            loss.backward()
            limit = settings["clip"] or float("inf")
            norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), limit))
            losses.append(loss.detach())
            optimizer.step()
        expected |= {f"adamw.{variant}.losses": torch.stack(losses), f"adamw.{variant}.norms": torch.stack(norms)}
        expected |= {f"adamw.{variant}.{key}": parameter for key, parameter in parameters.items()}

    contiguous = {key: value.detach().clone().contiguous() for key, value in expected.items()}
    save_file(contiguous, folder / "expected.safetensors")
    print(f"{name}: loss {contiguous['loss']:.4f}, gradient norm {contiguous['adamw.plain.norms'][0]:.3f}, "
          f"losses {contiguous['adamw.plain.losses'].tolist()}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for model in MODELS:
        write(*model)
