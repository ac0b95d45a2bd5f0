"""Everything that the official SDK's REST and admin clients can do."""

import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone

import pytest
import tinker
from conftest import BASE_MODEL
from tinker import types


@pytest.fixture
def rest():
    return tinker.RestClient()


@pytest.fixture
def path(training):
    return training.save_state("rest", user_metadata={"why": "test"}).result().path


def run_of(path):
    return path.split("/")[2]


def checkpoint(rest, path):
    listed = rest.list_checkpoints(run_of(path)).result().checkpoints
    return next((each for each in listed if each.tinker_path == path), None)


def test_a_run_is_found_by_its_checkpoint(rest, path):
    run = rest.get_training_run_by_tinker_path(path).result()
    assert run.training_run_id == run_of(path)
    assert run.last_checkpoint.tinker_path == path
    assert run.last_checkpoint.user_metadata == {"why": "test"}


def test_a_checkpoint_is_deleted(rest, path):
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert checkpoint(rest, path) is None
    with pytest.raises(tinker.NotFoundError):
        rest.delete_checkpoint(run_of(path), "weights/rest").result()


def test_a_checkpoint_is_published_and_taken_back(rest, path):
    rest.publish_checkpoint_from_tinker_path(path).result()
    assert checkpoint(rest, path).public
    rest.unpublish_checkpoint_from_tinker_path(path).result()
    assert not checkpoint(rest, path).public


def test_a_time_to_live_is_set_and_removed(rest, path):
    rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result()
    left = checkpoint(rest, path).expires_at - datetime.now(timezone.utc)
    assert timedelta(minutes=119) < left <= timedelta(minutes=120)
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    assert checkpoint(rest, path).expires_at is None
    with pytest.raises(tinker.BadRequestError, match="ttl_seconds"):
        rest.set_checkpoint_ttl_from_tinker_path(path, 5).result()


def test_weights_are_copied_and_outlive_their_source(rest, service, training, path, batch, monkeypatch):
    loss = training.forward(batch, "cross_entropy").result().metrics["loss:sum"]
    copy = rest.copy_weights(path, "local").result()
    assert copy != path
    rest.delete_checkpoint_from_tinker_path(path).result()
    other = service.create_training_client_from_state(copy)
    assert other.forward(batch, "cross_entropy").result().metrics["loss:sum"] == loss
    monkeypatch.setenv("TINKER_PROJECT_ID", "local")
    again = service.copy_weights(copy, ttl_seconds=3600).result()
    assert checkpoint(rest, again).expires_at is not None


def test_external_weights_are_downloaded_without_a_key(rest, training):
    saved = training.save_weights_external("external").result()
    found = rest.get_external_weights_urls(saved.path).result()
    assert found.expires > datetime.now(timezone.utc)
    sizes = 0
    for url in found.urls.values():
        with urllib.request.urlopen(url) as response:
            sizes += len(response.read())
    assert sizes == checkpoint(rest, saved.path).size_bytes
    weights = found.urls["adapter_model.safetensors"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(weights[:-2] + "xx")
    assert refused.value.code == 403


def test_sessions_are_listed_described_and_found(rest):
    service = tinker.ServiceClient(user_metadata={"label": "findme"})
    training = service.create_lora_training_client(base_model=BASE_MODEL, rank=4)
    run_id = training.get_info().model_id
    session_id = run_id.split(":")[0]
    assert session_id in rest.list_sessions(limit=100).result().sessions
    assert rest.get_session(session_id).result().training_run_ids == [run_id]
    request = types.SessionSearchRequest(user_metadata={"label": "findme"})
    found = rest.search_sessions(request).result().sessions
    assert session_id in [each.session_id for each in found]
    rest.assign_session_project(session_id, "local").result()
    with pytest.raises(tinker.PermissionDeniedError, match="project_id"):
        rest.assign_session_project(session_id, "other").result()
    service.close("errored", "on purpose").result()
    request = types.SessionSearchRequest(session_id=session_id)
    (summary,) = rest.search_sessions(request).result().sessions
    assert summary.status.type == "client_finished"
    assert summary.status.detail == "on purpose"


def test_a_trace_is_exported(rest, service, training):
    session_id = training.get_info().model_id.split(":")[0]
    url = rest.export_session_trace(session_id).result()
    with urllib.request.urlopen(url) as answer:
        trace = answer.read()
    assert b"create_model" in trace


def test_a_sampler_is_described(rest, service):
    sampler = service.create_sampling_client(base_model=BASE_MODEL)
    assert sampler.get_base_model() == BASE_MODEL
    sampler_id = rest.get_session(session_of(rest)).result().sampler_ids[0]
    assert rest.get_sampler(sampler_id).result().base_model == BASE_MODEL


def session_of(rest):
    return rest.list_sessions(limit=1).result().sessions[0]


def test_what_was_done_is_in_the_audit_log(rest, path):
    rest.publish_checkpoint_from_tinker_path(path).result()
    entries = rest.get_audit_log("checkpoints").result().entries
    assert ("checkpoint_publish", path) in [(each.event, each.tinker_path) for each in entries]
    assert rest.get_audit_log("teams").result().entries == []


def test_tokens_are_counted_by_the_hour(training, batch):
    training.forward_backward(batch, "cross_entropy").result()
    run_id = training.get_info().model_id
    start = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0)
    usage = tinker.AdminClient().get_billing_usage(start, start + timedelta(hours=2)).result()
    own = [event for event in usage.data if event.session_id == run_id.split(":")[0]]
    tokens = sum(datum.model_input.length for datum in batch)
    assert [event.event_info.token_count for event in own] == [tokens]
    assert own[0].estimated_cost_usd is None


def test_stored_bytes_are_counted(path):
    usage = tinker.AdminClient().get_current_checkpoint_storage_usage().result()
    assert usage.data[0].checkpoint_count >= 1
    assert usage.data[0].size_bytes > 0


def test_the_caller_is_known(rest):
    identity = rest.whoami().result()
    assert identity.user_urn.startswith("tml:organization_user:")
    assert identity.org_urn.startswith("tml:organization:")


def test_a_sampler_handle_leads_to_the_same_sampler(service):
    sampler = service.create_sampling_client(base_model=BASE_MODEL)
    prompt, params = types.ModelInput.from_ints([1, 5]), types.SamplingParams(max_tokens=4, seed=3)
    other = tinker.SamplingClient.from_sampler_handle(sampler.get_sampler_handle())
    draws = [each.sample(prompt, 1, params).result().sequences[0].tokens for each in (sampler, other)]
    assert list(draws[0]) == list(draws[1])


def test_console_links_are_made(service, training):
    assert training.get_info().model_id in training.get_console_url()
    assert service.get_console_url()
