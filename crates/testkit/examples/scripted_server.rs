//! Runs the scripted server, correct as it is by default, until its input ends.
//!
//! `cargo run -p tinkrs-testkit --example scripted_server` prints the URL to point a client at;
//! any key that starts with `tml-` will do, and the base model is `test/model`.

use tinkrs_testkit::ScriptedServer;
use tokio::io::AsyncReadExt;

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "the URL is what the program is for")]
async fn main() -> std::io::Result<()> {
    let server = ScriptedServer::start().await;
    println!("{}", server.url());
    let mut input = Vec::new();
    tokio::io::stdin().read_to_end(&mut input).await?;
    for execution in server.executions() {
        println!(
            "{} {} {}",
            execution.model_id, execution.seq_id, execution.operation
        );
    }
    Ok(())
}
