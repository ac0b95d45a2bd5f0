//! Runs the null server until it is killed: `null_server [PORT] [--latency-ms MS]`.
//!
//! It prints its URL. Any key that starts with `tml-` will do; the base model is `null/model`.

use std::time::Duration;
use tinkrs_testkit::null_server::serve;
use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "the URL is what scripts read")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut port, mut latency) = (0, Duration::ZERO);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--latency-ms" => {
                let value = arguments.next().ok_or("--latency-ms needs a number")?;
                latency = Duration::from_millis(value.parse()?);
            }
            value => port = value.parse()?,
        }
    }
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("http://{}", listener.local_addr()?);
    Ok(serve(listener, latency).await?)
}
