//! `tinkrs models hosted`: the models of the hosted service, with their prices.

use anyhow::anyhow;
use serde::Serialize;
use tinkrs_chat::format::known_of_model;
use tinkrs_recipes::{Price, Prices};

use crate::context::Context;
use crate::cost::warn_of_age;
use crate::human::or_unknown;
use crate::output::Hint;
use crate::table::Table;

/// List the models of the hosted service: their chat formats, and prices as far as they are known
///
/// The list comes with this program and has a date; it asks nobody. For what a server offers now:
/// `tinkrs model list`. Prices are for a million tokens.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only models whose name has this in it, in upper or lower case
    substring: Option<String>,
}

#[derive(Debug, Serialize)]
struct Listing {
    date: String,
    currency: String,
    models: Vec<Model>,
}

#[derive(Debug, Serialize)]
struct Model {
    name: String,
    chat_format: Option<&'static str>,
    #[serde(flatten)]
    price: Price,
}

pub(super) fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let prices = Prices::bundled();
    warn_of_age(&prices);
    let wanted = args.substring.as_deref().unwrap_or_default().to_lowercase();
    let models = prices.models.into_iter();
    let models: Vec<Model> = models
        .filter(|(name, _)| name.to_lowercase().contains(&wanted))
        .map(|(name, price)| Model {
            chat_format: known_of_model(&name).map(|known| known.id),
            name,
            price,
        })
        .collect();
    if models.is_empty() {
        return Err(anyhow!("no model has `{wanted}` in its name")
            .context(Hint("`tinkrs models hosted` shows all of them")));
    }
    let listing = Listing {
        date: prices.date,
        currency: prices.currency,
        models,
    };
    ctx.show(&listing, || table(&listing))
}

fn table(listing: &Listing) -> Table {
    let title = format!(
        "{} for a million tokens, {}",
        listing.currency, listing.date
    );
    let headers = ["Model", "Chat format", "Read", "Sampled", "Trained"];
    let mut table = Table::new(headers).title(title);
    for model in &listing.models {
        let price = |price: Option<f64>| or_unknown(price.map(|price| format!("{price:.3}")));
        table.row([
            model.name.clone(),
            or_unknown(model.chat_format),
            price(model.price.prefill),
            price(model.price.sample),
            price(model.price.train),
        ]);
    }
    table
}
