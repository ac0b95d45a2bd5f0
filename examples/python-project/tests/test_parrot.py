import pytest
import tinker
from parrot import Settings, train

# Any tokens will do: the model has to learn that these answers follow.
EXAMPLES = [([10, 11, 12], [40, 41, 42]), ([20, 21], [40, 41, 42])]
SETTINGS = Settings(base_model="tinkrs/nano", steps=12, learning_rate=1e-2)


def test_the_loop_learns_and_the_model_says_so(tinker_service_client):
    losses, sampler = train(tinker_service_client, EXAMPLES, SETTINGS)
    assert losses[-1] < losses[0] / 4, losses
    prompt = tinker.ModelInput.from_ints(EXAMPLES[0][0])
    params = tinker.SamplingParams(max_tokens=3, temperature=0.0)
    assert sampler.sample(prompt, 1, params).result().sequences[0].tokens == [40, 41, 42]


def test_the_same_loop_gives_the_same_numbers(tinker_service_client):
    first, _ = train(tinker_service_client, EXAMPLES, SETTINGS)
    second, _ = train(tinker_service_client, EXAMPLES, SETTINGS)
    assert first == second


@pytest.mark.tinker_faults(rate_limit=0.1, server_error=0.1, cut=0.1, seed=7)
def test_a_bad_day_of_the_service_changes_nothing(tinker_service_client, tinker_server):
    stormy, _ = train(tinker_service_client, EXAMPLES, SETTINGS)
    tinker_server.clear_faults()
    calm, _ = train(tinker_service_client, EXAMPLES, SETTINGS)
    assert stormy == calm
