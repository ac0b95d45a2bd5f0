"""What clients from before protobuf do most: train, save, sample."""

import sys
import types as python_types

# SDK 0.3.0 imports torch for conversions that these tests do not use.
try:
    import torch  # noqa: F401
except ImportError:
    torch = python_types.ModuleType("torch")
    torch.Tensor = type("Tensor", (), {})
    sys.modules["torch"] = torch

import pytest
import tinker
from tinker import types

PROMPT = [1, 5, 9]


@pytest.fixture(scope="module")
def service():
    return tinker.ServiceClient()


@pytest.fixture
def training(service):
    return service.create_lora_training_client(base_model="tiny", rank=8, seed=7)


def datum(tokens):
    targets = tokens[1:]

    def tensor(data, dtype):
        return types.TensorData(data=data, dtype=dtype, shape=[len(data)])

    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tensor(targets, "int64"),
            "weights": tensor([1.0] * len(targets), "float32"),
        },
    )


BATCH = [datum([1, 5, 9, 2]), datum([1, 6, 8, 4, 3])]


def train(client, steps):
    passes = []
    for _ in range(steps):
        passes.append(client.forward_backward(BATCH, "cross_entropy"))
        update = client.optim_step(types.AdamParams(learning_rate=1e-2))
    update.result()
    return [each.result().metrics["loss:sum"] for each in passes]


def test_a_loss_falls(training):
    losses = train(training, 10)
    assert losses[-1] < 0.2 * losses[0], losses


def test_forward_gives_logprobs(training):
    output = training.forward(BATCH, "cross_entropy").result()
    assert [len(each["logprobs"].data) for each in output.loss_fn_outputs] == [3, 4]


def test_a_loaded_run_goes_on_bit_for_bit(service, training):
    train(training, 2)
    path = training.save_state("half").result().path
    uninterrupted = train(training, 3)
    other = service.create_lora_training_client(base_model="tiny", rank=8, seed=8)
    load = getattr(other, "load_state_with_optimizer", other.load_state)
    load(path).result()
    assert train(other, 3) == uninterrupted


def test_samples_are_repeatable(service, training):
    train(training, 2)
    path = training.save_weights_for_sampler("named").result().path
    sampler = service.create_sampling_client(model_path=path)
    params = types.SamplingParams(max_tokens=6, seed=1)

    def draw():
        response = sampler.sample(types.ModelInput.from_ints(PROMPT), 4, params).result()
        return [list(sequence.tokens) for sequence in response.sequences]

    assert len(draw()) == 4
    assert draw() == draw()


def test_weights_without_a_name_are_sampled(training):
    sampler = training.save_weights_and_get_sampling_client("unnamed")
    scores = sampler.compute_logprobs(types.ModelInput.from_ints(PROMPT)).result()
    assert scores[0] is None and len(scores) == len(PROMPT)


def test_a_bad_token_is_named(training):
    with pytest.raises(Exception, match="99999"):
        training.forward_backward([datum([1, 99_999])], "cross_entropy").result()
    train(training, 1)
