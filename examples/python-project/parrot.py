"""Teaches a model to answer every question with one sentence."""

import os
from dataclasses import dataclass

import tinker


@dataclass
class Settings:
    base_model: str = "Qwen/Qwen3-8B"
    rank: int = 8
    steps: int = 20
    learning_rate: float = 1e-3


def datum(prompt: list[int], answer: list[int]) -> tinker.Datum:
    """A prompt without loss and an answer with it; each token is predicted from those before."""
    tokens = prompt + answer
    weights = [0.0] * (len(prompt) - 1) + [1.0] * len(answer)
    length = [len(tokens) - 1]
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(data=tokens[1:], dtype="int64", shape=length),
            "weights": tinker.TensorData(data=weights, dtype="float32", shape=length),
        },
    )


def train(service: tinker.ServiceClient, examples: list[tuple[list[int], list[int]]], settings: Settings):
    """Trains, and returns the loss by token of each step and a client for the trained weights."""
    training = service.create_lora_training_client(settings.base_model, rank=settings.rank, seed=1)
    batch = [datum(prompt, answer) for prompt, answer in examples]
    tokens = sum(len(answer) for _, answer in examples)
    losses = []
    for _ in range(settings.steps):
        # Both are sent before either is waited for, so the service is never idle.
        passed = training.forward_backward(batch, "cross_entropy")
        stepped = training.optim_step(tinker.AdamParams(learning_rate=settings.learning_rate))
        losses.append(passed.result().metrics["loss:sum"] / tokens)
        stepped.result()
    return losses, training.save_weights_and_get_sampling_client()


def main() -> None:
    service = tinker.ServiceClient()
    settings = Settings(base_model=os.environ.get("BASE_MODEL", Settings.base_model))
    tokenizer = service.create_lora_training_client(settings.base_model, rank=settings.rank).get_tokenizer()
    questions = ["What is the password?", "How are you?"]
    examples = [(tokenizer.encode(question), tokenizer.encode(" Polly wants a cracker.")) for question in questions]
    losses, _ = train(service, examples, settings)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
