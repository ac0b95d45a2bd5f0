//! Asking before something is billed.

use std::io::IsTerminal;

use anyhow::anyhow;
use tinkrs_recipes::{Prices, Tokens};

use crate::backend::Backend;
use crate::output::{Hint, note};
use crate::prompt;

/// On a server that charges, says what a command takes and asks for confirmation, unless `yes` is
/// set.
pub(crate) async fn confirm(backend: &Backend, tokens: &Tokens, yes: bool) -> anyhow::Result<()> {
    if !backend.is_hosted {
        return Ok(());
    }
    note(statement(&backend.model, tokens, &Prices::bundled()));
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(
            anyhow!("cannot ask for confirmation of the cost: stdin is not a terminal").context(
                Hint("`--yes` continues without asking; `--local` uses this machine instead"),
            ),
        );
    }
    if !prompt::confirm("Continue?").await? {
        return Err(anyhow!("not confirmed; nothing was billed"));
    }
    Ok(())
}

fn statement(model: &str, tokens: &Tokens, prices: &Prices) -> String {
    let cost = match tokens.cost(model, prices) {
        Some(cost) => format!(
            "about {cost:.2} {} at the prices of {}, which may have changed",
            prices.currency, prices.date
        ),
        None => "the price of this model is not known here".to_owned(),
    };
    format!("{tokens} at most, billed to your key: {cost}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_stated_where_it_is_known() {
        let tokens = Tokens {
            train: 2_000_000,
            ..Tokens::default()
        };
        let prices = Prices::bundled();
        let known = statement("Qwen/Qwen3-8B", &tokens, &prices);
        let start = "tokens: 2000000 trained at most, billed to your key: about 0.80 USD";
        assert!(known.starts_with(start), "{known}");
        assert!(known.contains(&prices.date), "{known}");
        assert!(statement("my/model", &tokens, &prices).ends_with("is not known here"));
    }
}
