"""A client for each test, and the batch that most of them train on."""

import pytest
import tinker
from tinker import types

BASE_MODEL = "tiny"


@pytest.fixture
def service():
    client = tinker.ServiceClient()
    yield client
    if hasattr(client, "close"):
        client.close("success").result()


@pytest.fixture
def training(service):
    return service.create_lora_training_client(base_model=BASE_MODEL, rank=8, seed=7)


def supervised(tokens, prompt):
    """A sequence whose first `prompt` tokens carry no weight."""
    targets = tokens[1:]
    weights = [float(index + 1 >= prompt) for index in range(len(targets))]
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": targets, "weights": weights},
    )


@pytest.fixture
def batch():
    return [
        supervised([1, 5, 9, 2, 7, 3], 2),
        supervised([1, 6, 8, 4], 1),
        supervised([1, 10, 11, 12, 13, 14, 15, 16], 3),
    ]
