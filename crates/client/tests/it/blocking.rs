//! The same client without async.

use crate::support::{datums, loss_of, service};
use anyhow::Result;
use std::time::Duration;
use tinkrs::blocking::Wait;
use tinkrs::{AdamParams, FinishReason, ModelInput, SamplingParams};
use tinkrs_testkit::scripted::BASE_MODEL;
use tinkrs_testkit::{Gate, ScriptedServer};

#[test]
fn a_run_works_without_a_runtime() -> Result<()> {
    let server = ScriptedServer::start_on_thread();
    let service = service(&server);
    let client = service.create_lora_training_client(BASE_MODEL).wait()?;
    let pass = client.forward_backward(datums([3])).submit();
    let step = client.optim_step(AdamParams::new(0.1)).submit();
    assert_eq!(step.wait()?.metrics.unwrap()["passes"], 1.0);
    assert_eq!(pass.wait()?.loss(), Some(loss_of(3)));
    let gate = Gate::closed();
    server.on("optim_step").hold_result(&gate);
    let mut held = client.optim_step(AdamParams::new(0.1)).submit();
    assert!((&mut held).wait_timeout(Duration::ZERO).is_none());
    assert!(!held.is_done());
    gate.open();
    let waited = (&mut held).wait_timeout(Duration::from_secs(60));
    waited.expect("it is done by then")?;
    assert!(held.is_done());
    let sampler = client.save_weights_and_get_sampling_client().wait()?;
    let prompt = ModelInput::from_tokens([5, 6]);
    let output = sampler.sample(prompt, SamplingParams::new(3)).wait()?;
    assert_eq!(output.sequences[0].tokens, [7, 8, 9]);
    service.close(FinishReason::Success, None).wait()?;
    assert_eq!(
        server.executed_in_order(client.model_id()),
        [
            "forward_backward",
            "optim_step",
            "optim_step",
            "save_weights_for_sampler"
        ]
    );
    Ok(())
}
