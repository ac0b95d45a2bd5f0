"""The tokenizer of a model, which the official SDK loads from where the server says."""

from tinker import types

MODEL = "tinkrs/nano"


def test_the_tokenizer_of_a_model_is_loaded_and_fits_it(service):
    training = service.create_lora_training_client(base_model=MODEL, rank=4)
    tokenizer = training.get_tokenizer()
    tokens = tokenizer.encode("Hello there", add_special_tokens=False)
    assert tokenizer.decode(tokens) == "Hello there"
    # A sampler's own `get_tokenizer` asks the hub for the model's name, whatever the server says.
    sampler = service.create_sampling_client(base_model=MODEL)
    params = types.SamplingParams(max_tokens=8, seed=1)
    sampled = sampler.sample(types.ModelInput.from_ints(tokens), num_samples=1, sampling_params=params).result()
    assert isinstance(tokenizer.decode(sampled.sequences[0].tokens), str)
