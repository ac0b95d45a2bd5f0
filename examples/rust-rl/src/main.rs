//! usage: box-rl FOLDER [MODEL]

use std::path::PathBuf;

use anyhow::{Context, Result};
use tinkrs::ServiceClient;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().context("usage: box-rl FOLDER [MODEL]")?);
    let model = arguments.next().unwrap_or("tinkrs/nano".to_owned());

    let service = ServiceClient::from_env(); // TINKER_BASE_URL, TINKER_API_KEY
    let renderer = box_rl::renderer(&service, &model).await?;
    println!("the habit of looking, now and then");
    let habits = box_rl::learn_habits(&service, &model, &renderer, &folder.join("habits")).await?;
    println!("rewards for the right word");
    let rl = folder.join("rl");
    let outcome = box_rl::learn_to_look(&service, &model, &renderer, &habits, &rl, |report| {
        let numbers = &report.numbers;
        println!(
            "step {}: reward {:.2}, looks {:.2}",
            report.step + 1,
            numbers["reward"],
            numbers["env/tool_calls"]
        );
    })
    .await?;
    println!(
        "sample from {:?}; see {}",
        outcome.sampler,
        rl.join("report.html").display()
    );
    Ok(())
}
