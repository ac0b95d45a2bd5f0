"""`tinkrs.sdk`: the official SDK with its samples drawn by the Rust client."""

import asyncio
import gc
import os
import pickle
import subprocess
import sys

import pytest
import tinker
from tinker import types

import tinkrs
from tinkrs import sdk


@pytest.fixture(scope="module")
def server():
    with tinkrs.serve() as server:
        yield server


@pytest.fixture(scope="module")
def service(server):
    return sdk.ServiceClient(base_url=server.url, api_key=server.key)


@pytest.fixture(scope="module")
def both(server, service):
    """The same sampler by the Rust client and by the official one."""
    official = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    name = {"base_model": "tinkrs/nano"}
    return service.create_sampling_client(**name), official.create_sampling_client(**name)


PROMPT = types.ModelInput.from_ints([71, 72, 80, 81])


@pytest.mark.parametrize(
    "params",
    [
        types.SamplingParams(max_tokens=8, seed=7),
        types.SamplingParams(max_tokens=8, temperature=0.0, stop=[]),
        types.SamplingParams(max_tokens=8, seed=1, top_k=4, top_p=0.9, temperature=0.7),
        types.SamplingParams(max_tokens=8, seed=1, stop=[5, 6]),
        types.SamplingParams(max_tokens=8, seed=1, stop=("a", "e")),
        types.SamplingParams(max_tokens=8, seed=1, stop="e"),
    ],
)
def test_samples_have_the_types_and_the_bits_of_the_official_ones(both, params):
    fast, official = (client.sample(PROMPT, 2, params, include_prompt_logprobs=True).result() for client in both)
    assert type(fast) is types.SampleResponse and type(fast.sequences[0]) is types.SampledSequence
    for mine, theirs in zip(fast.sequences, official.sequences, strict=True):
        assert (mine.tokens, mine.logprobs, mine.stop_reason) == (theirs.tokens, theirs.logprobs, theirs.stop_reason)
        assert (mine.tokens_np.dtype, mine.logprobs_np.dtype) == (theirs.tokens_np.dtype, theirs.logprobs_np.dtype)
        assert mine.sequence_id
    assert fast.prompt_logprobs == official.prompt_logprobs
    assert fast.prompt_logprobs[0] is None


def test_what_the_rust_side_does_not_carry_is_asked_for_by_the_official_code(both):
    fast, official = (
        client.sample(PROMPT, 1, types.SamplingParams(max_tokens=2, seed=1), topk_sample_logprobs=2).result() for client in both
    )
    assert fast.sequences[0].topk_logprobs == official.sequences[0].topk_logprobs is not None


def test_it_is_an_official_client_in_everything_else(both):
    fast, official = both
    assert isinstance(fast, tinker.SamplingClient)
    assert fast.compute_logprobs(PROMPT).result() == official.compute_logprobs(PROMPT).result()
    assert fast.get_base_model() == "tinkrs/nano"
    again = pickle.loads(pickle.dumps(fast))
    params = types.SamplingParams(max_tokens=4, seed=3)
    assert again.sample(PROMPT, 1, params).result().sequences[0].tokens == fast.sample(PROMPT, 1, params).result().sequences[0].tokens


def test_a_loop_changes_one_import(service):
    training = service.create_lora_training_client("tinkrs/nano", rank=4, seed=1)
    assert isinstance(training, tinker.TrainingClient)
    datum = types.Datum(
        model_input=types.ModelInput.from_ints([71, 72, 80, 81]),
        loss_fn_inputs={"target_tokens": [72, 80, 81, 82], "weights": [0.0, 1.0, 1.0, 1.0]},
    )
    for _ in range(40):
        training.forward_backward([datum], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=4e-3)).result()
    sampler = training.save_weights_and_get_sampling_client()
    assert type(sampler) is sdk.SamplingClient
    params = types.SamplingParams(max_tokens=3, temperature=0.0)
    assert sampler.sample(types.ModelInput.from_ints([71, 72]), 1, params).result().sequences[0].tokens == [80, 81, 82]


def test_samples_are_awaited_and_hundreds_are_under_way_at_once(both):
    fast, _ = both

    async def draw(seed):
        return await fast.sample_async(PROMPT, 1, types.SamplingParams(max_tokens=2, seed=seed))

    async def all_of_them():
        return await asyncio.gather(*(draw(seed) for seed in range(300)))

    responses = asyncio.run(all_of_them())
    alone = fast.sample(PROMPT, 1, types.SamplingParams(max_tokens=2, seed=123)).result()
    assert responses[123].sequences[0].tokens == alone.sequences[0].tokens


def test_errors_are_those_of_the_official_sdk(server, service, both):
    fast, official = both
    too_long = types.ModelInput.from_ints([1] * 100_000)
    params = types.SamplingParams(max_tokens=1)
    raised = []
    for client in (fast, official):
        with pytest.raises(tinker.TinkerError) as error:
            client.sample(too_long, 1, params).result()
        raised.append(type(error.value))
    assert raised[0] is raised[1]
    with pytest.raises((TypeError, OverflowError, ValueError)):
        fast.sample(types.ModelInput.model_construct(chunks=[types.EncodedTextChunk.model_construct(tokens=["a"])]), 1, params)
    # Nothing waits for what was never asked for.
    assert not fast.__dict__["_tinkrs_drawing"].waiting


def test_a_sample_that_is_cancelled_and_a_client_that_is_dropped_leave_no_thread_behind(service):
    client = service.create_sampling_client(base_model="tinkrs/nano")
    future = client.sample(PROMPT, 1, types.SamplingParams(max_tokens=64, seed=1))
    future.cancel()
    client.sample(PROMPT, 1, types.SamplingParams(max_tokens=1, seed=1)).result()
    thread = client.__dict__["_tinkrs_drawing"].thread
    del client, future
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()


def test_futures_outlive_their_client(service):
    params = types.SamplingParams(max_tokens=8, seed=7)
    client = service.create_sampling_client(base_model="tinkrs/nano")
    expected = client.sample(PROMPT, 1, params).result().sequences[0].tokens
    futures = [service.create_sampling_client(base_model="tinkrs/nano").sample(PROMPT, 1, params) for _ in range(3)]
    gc.collect()
    for future in futures:
        assert future.result(60).sequences[0].tokens == expected


def test_a_forked_child_samples_by_itself(service):
    params = types.SamplingParams(max_tokens=4, seed=7)
    client = service.create_sampling_client(base_model="tinkrs/nano")
    expected = client.sample(PROMPT, 1, params).result().sequences[0].tokens
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if client.sample(PROMPT, 1, params).result(60).sequences[0].tokens == expected else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert client.sample(PROMPT, 1, params).result(60).sequences[0].tokens == expected


def test_an_official_sdk_that_is_too_old_is_named():
    program = "import tinker; del tinker.SamplingClient.get_sampler_handle; import tinkrs.sdk"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert f"needs tinker 0.33 or later, and {tinker.__version__} is installed" in output.stderr


@pytest.mark.parametrize("waits", ["futures[0].result()", "[future.result() for future in futures]", "pass"])
def test_a_program_ends_by_itself_whatever_is_under_way(server, waits):
    program = f"""
from tinkrs import sdk
from tinker import types
client = sdk.ServiceClient(base_url={server.url!r}, api_key={server.key!r}).create_sampling_client(base_model="tinkrs/nano")
prompt = types.ModelInput.from_ints([71, 72])
futures = [client.sample(prompt, 1, types.SamplingParams(max_tokens=40, seed=seed)) for seed in range(20)]
{waits}
print("the end", flush=True)
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (output.returncode, output.stdout) == (0, "the end\n"), output.stderr
