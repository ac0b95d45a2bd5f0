"""Writes tiny random models with an adapter each, and what PyTorch computes with them.

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

Parameters are named as in `adapter_model.safetensors`. Experts are linear layers of their own, as in files; `transformers`
holds all of a layer in one tensor, for which `peft` has no such adapters, so theirs are added to the weights here: A and
B of `experts.<number>.gate_proj`, `up_proj` and `down_proj`.

Name a model to write that one alone.
"""

import json
import shutil
import sys
import warnings
from pathlib import Path

import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, GptOssConfig, LlamaConfig, MistralConfig, Phi3Config,
                          Qwen2Config, Qwen3Config, Qwen3MoeConfig, Qwen3_5MoeTextConfig,
                          Qwen3_5TextConfig)

HERE = Path(__file__).parent
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj",
           "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", "shared_expert_gate"]
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
    ("tiny-mistral", MistralConfig(**SHAPE, rms_norm_eps=1e-5, tie_word_embeddings=True, sliding_window=7,
                                   rope_parameters=plain(1e4)), False),
    ("tiny-phi3", Phi3Config(**SHAPE | dict(max_position_embeddings=256), rms_norm_eps=1e-5, tie_word_embeddings=False,
                             original_max_position_embeddings=128,
                             rope_parameters=dict(rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.5,
                                                  short_factor=[1.0, 1.5], long_factor=[2.0, 3.0],
                                                  original_max_position_embeddings=128)), True),
    ("tiny-gemma2", Gemma2Config(**SHAPE, rms_norm_eps=1e-6, head_dim=8, sliding_window=6, query_pre_attn_scalar=12,
                                 attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
                                 rope_parameters=plain(1e4)), True),
    ("tiny-gemma3", Gemma3TextConfig(**SHAPE, rms_norm_eps=1e-6, head_dim=8, sliding_window=6, query_pre_attn_scalar=16,
                                     layer_types=["sliding_attention", "full_attention"],
                                     rope_parameters=dict(
                                         full_attention=dict(rope_type="linear", rope_theta=1e6, factor=4.0),
                                         sliding_attention=plain(1e4))), False),
    ("tiny-qwen3-moe", Qwen3MoeConfig(**SHAPE, rms_norm_eps=1e-6, tie_word_embeddings=True, head_dim=16, num_experts=5,
                                      num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True,
                                      rope_parameters=plain(1e6)), False),
    ("tiny-gpt-oss", GptOssConfig(**SHAPE | dict(intermediate_size=32), rms_norm_eps=1e-5, head_dim=8, sliding_window=6,
                                  num_local_experts=4, num_experts_per_tok=2,
                                  rope_parameters=dict(rope_type="yarn", rope_theta=100.0, factor=8.0, beta_fast=8.0,
                                                       beta_slow=1.0, truncate=False,
                                                       original_max_position_embeddings=16)), False),
    ("tiny-qwen35", Qwen3_5TextConfig(**SHAPE, rms_norm_eps=1e-6, tie_word_embeddings=True, head_dim=16,
                                      layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2,
                                      linear_num_value_heads=4, linear_key_head_dim=6, linear_value_head_dim=8,
                                      linear_conv_kernel_dim=4,
                                      rope_parameters=plain(1e4) | dict(partial_rotary_factor=0.25)), False),
    ("tiny-qwen35-moe", Qwen3_5MoeTextConfig(**{key: size for key, size in SHAPE.items() if key != "intermediate_size"},
                                             rms_norm_eps=1e-6, tie_word_embeddings=False, head_dim=16,
                                             layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2,
                                             linear_num_value_heads=4, linear_key_head_dim=6, linear_value_head_dim=8,
                                             linear_conv_kernel_dim=4, num_experts=5, num_experts_per_tok=2,
                                             moe_intermediate_size=24, shared_expert_intermediate_size=32,
                                             rope_parameters=plain(1e4) | dict(partial_rotary_factor=0.25)), False),
]
# Whether the model that is being written has experts as gpt-oss does: inputs first, gates and values in turn.
GPT_OSS = False
RANK, ALPHA, LEARNING_RATE, STEPS = 4, 32, 1e-2, 3
VARIANTS = {"plain": dict(weight_decay=0.0, clip=0.0), "decay": dict(weight_decay=0.1, clip=0.0),
            "clip": dict(weight_decay=0.01, clip=0.5)}


def randomise(model):
    """Draws weights that keep activations of order one; the usual initialisation is too close to zero to test much."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape)
        if name.endswith("norm.weight"):
            # Some norms multiply by one more than their weight.
            adds_one = "gemma" in model.config.model_type or "qwen3_5" in model.config.model_type
            parameter.data = (0 if adds_one and "linear_attn" not in name else 1) + 0.1 * noise
        elif name.endswith(("bias", "sinks", "A_log")):
            parameter.data = 0.2 * noise
        elif "gpt_oss" in model.config.model_type and ".experts." in name:
            # Inputs come first there.
            parameter.data = noise / parameter.shape[1] ** 0.5
        else:
            parameter.data = noise / parameter.shape[-1] ** 0.5


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


def expert_tensors(name, tensor):
    """Takes what `transformers` has of all experts apart, into the names and shapes that files have."""
    layer, _, part = name.rpartition(".")
    part, kind = (part.removesuffix("_bias"), "bias") if part.endswith("_bias") else (part, "weight")
    for index, expert in enumerate(tensor):
        if GPT_OSS and kind == "weight":
            expert = expert.T
        if part == "down_proj":
            yield f"{layer}.{index}.down_proj.{kind}", expert
        else:
            halves = (expert[::2], expert[1::2]) if GPT_OSS else expert.chunk(2)
            for name, half in zip(("gate_proj", "up_proj"), halves):
                yield f"{layer}.{index}.{name}.{kind}", half


def file_tensors(tensors):
    """Gives tensors the names and shapes that they have in files."""
    for name, tensor in tensors:
        if ".experts." in name:
            yield from expert_tensors(name, tensor)
        else:
            yield name, tensor


class ExpertAdapters(torch.nn.Module):
    """Adapters of all experts of a layer, added to their weights before each pass."""

    def __init__(self, experts, prefix):
        super().__init__()
        self.experts, self.parameters_by_name = experts, {}
        self.base = {part: getattr(experts, part).detach() for part in ("gate_up_proj", "down_proj")}
        for part in self.base:
            names = [name for name, _ in expert_tensors(f"{prefix}.{part}", self.base[part])]
            shapes = [tensor.shape for _, tensor in expert_tensors(f"{prefix}.{part}", self.base[part])]
            for name, (outputs, inputs) in zip(names, shapes):
                layer = "base_model.model." + name.removesuffix(".weight")
                self.parameters_by_name[f"{layer}.lora_A.weight"] = torch.nn.Parameter(torch.zeros(RANK, inputs))
                self.parameters_by_name[f"{layer}.lora_B.weight"] = torch.nn.Parameter(torch.zeros(outputs, RANK))

    def merge(self):
        delta = {}
        for name, a in self.parameters_by_name.items():
            if name.endswith("lora_A.weight"):
                b = self.parameters_by_name[name.replace("lora_A", "lora_B")]
                index, part = name.split(".experts.")[1].split(".")[:2]
                delta[int(index), part] = ALPHA / RANK * b @ a
        count = len(self.base["down_proj"])
        if GPT_OSS:
            gate_up = torch.stack([torch.stack([delta[e, "gate_proj"], delta[e, "up_proj"]], 1).flatten(0, 1).T
                                   for e in range(count)])
            down = torch.stack([delta[e, "down_proj"].T for e in range(count)])
        else:
            gate_up = torch.stack([torch.cat([delta[e, "gate_proj"], delta[e, "up_proj"]]) for e in range(count)])
            down = torch.stack([delta[e, "down_proj"] for e in range(count)])
        for part, change in (("gate_up_proj", gate_up), ("down_proj", down)):
            self.experts._parameters.pop(part, None)
            self.experts.__dict__.pop(part, None)
            object.__setattr__(self.experts, part, self.base[part] + change)


def adapted(folder, with_head):
    """Wraps the model in an adapter whose B is not zero, as it is only at the very start of training."""
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                experts_implementation="eager")
    present = {name.rpartition(".")[2] for name, module in base.named_modules() if isinstance(module, torch.nn.Linear)}
    targets = [name for name in LINEARS if name in present] + (["lm_head"] if with_head else [])
    torch.manual_seed(2)
    model = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, task_type="CAUSAL_LM"))
    parameters = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameters[name.replace(".default", "")] = parameter
            parameter.data = torch.randn(parameter.shape) * (0.02 if "lora_B" in name else 0.15)
    experts = [(name, module) for name, module in base.named_modules() if name.endswith(".experts")]
    experts = [ExpertAdapters(module, name) for name, module in experts]
    for layer in experts:
        for name, parameter in layer.parameters_by_name.items():
            parameter.data = torch.randn(parameter.shape) * (0.02 if "lora_B" in name else 0.15)
            parameters[name] = parameter
    if experts:
        model.register_forward_pre_hook(lambda *_: [layer.merge() for layer in experts] and None)
    return model, parameters


def write(name, config, with_head):
    global GPT_OSS
    GPT_OSS = config.model_type == "gpt_oss"
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    randomise(base)
    base.save_pretrained(folder)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                experts_implementation="eager")
    (folder / "generation_config.json").unlink(missing_ok=True)

    data, expected = list(sequences()), {}
    with torch.no_grad():
        for s, (tokens, targets, weights) in enumerate(data):
            logits = logits_of(base, tokens)
            expected |= {f"tokens.{s}": tokens, f"targets.{s}": targets, f"weights.{s}": weights,
                         f"logits.{s}": logits, f"logprobs.{s}": target_logprobs(logits, targets)}

    expected["full.loss"] = loss_of(base, data)
    expected["full.loss"].backward()
    gradients = ((key, parameter.grad) for key, parameter in base.named_parameters())
    expected |= {f"full.grad.{key}": gradient for key, gradient in file_tensors(gradients)}

    model, parameters = adapted(folder, with_head)
    model.save_pretrained(folder / "adapter", save_embedding_layers=False)
    (folder / "adapter/README.md").unlink()
    saved = folder / "adapter/adapter_model.safetensors"
    by_hand = {key: value.detach() for key, value in parameters.items() if ".experts." in key}
    if by_hand:
        save_file(load_file(saved) | by_hand, saved, metadata={"format": "pt"})
    settings = folder / "adapter/adapter_config.json"
    written = json.loads(settings.read_text()) | {"base_model_name_or_path": name}
    if by_hand:
        written["target_modules"] += ["gate_proj", "up_proj", "down_proj"]
    written["target_modules"] = sorted(set(written["target_modules"]))
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
        if model[0] in sys.argv[1:] or len(sys.argv) == 1:
            write(*model)
