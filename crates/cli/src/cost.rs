//! What a command costs: asking before something is billed, and stopping before it is too much.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use serde::{Deserialize, Serialize};
use tinkrs_recipes::run::Cost;
use tinkrs_recipes::{Prices, Tokens};

use crate::backend::Backend;
use crate::output::{Hint, note};
use crate::prompt;

/// What a run may cost
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
pub(crate) struct CostArgs {
    /// Stop at a checkpoint before the run costs more than this, in the currency of the price list; more
    /// continues it
    #[arg(long, value_name = "AMOUNT", help_heading = "Run")]
    max_cost: Option<f64>,

    /// TOML file with prices, in the form of the built-in list, which `tinkrs models hosted` shows
    #[arg(long, value_name = "FILE", help_heading = "Run")]
    prices: Option<PathBuf>,
}

impl CostArgs {
    /// Returns the prices that count for a server, if it charges or the user gives some.
    fn prices(&self, backend: &Backend) -> anyhow::Result<Option<Prices>> {
        match &self.prices {
            Some(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.with_context(|| format!("could not read {}", path.display()))?;
                let prices = Prices::parse(&text);
                Ok(Some(prices.with_context(|| path.display().to_string())?))
            }
            None => Ok(backend.is_hosted.then(Prices::bundled)),
        }
    }

    /// Returns what a run of so many steps will cost, and refuses what cannot be kept to.
    pub(crate) fn bill(
        &self,
        backend: &Backend,
        tokens: &Tokens,
        steps: usize,
        folder: &Path,
    ) -> anyhow::Result<Option<Bill>> {
        if let Some(limit) = self.max_cost {
            ensure!(
                limit.is_finite() && limit > 0.0,
                "--max-cost: {limit}, expected a number above 0"
            );
        }
        let prices = self.prices(backend)?;
        let Some(prices) = prices else {
            if self.max_cost.is_some() {
                note("this server charges nothing: `--max-cost` changes nothing");
            }
            return Ok(None);
        };
        let Some(total) = tokens.cost(&backend.model, &prices) else {
            ensure!(
                self.max_cost.is_none(),
                "--max-cost: the price of `{}` is not known: give it in a file, `--prices FILE`",
                backend.model
            );
            return Ok(None);
        };
        let bill = Bill {
            limit: self.max_cost,
            total,
            steps,
            rate: total / (tokens.train as f64).max(1.0),
            trained: Cost::tokens_trained(folder),
            largest: 0.0,
            currency: prices.currency,
            prices_of: prices.date,
        };
        let bill = bill.with_earlier(Cost::read(folder));
        bill.check()?;
        Ok(Some(bill))
    }
}

/// What a run costs while it goes on.
#[derive(Clone, Debug)]
pub(crate) struct Bill {
    limit: Option<f64>,
    /// What the whole run costs at most.
    total: f64,
    steps: usize,
    /// What a trained token costs, with its share of what is sampled and evaluated.
    rate: f64,
    /// How many tokens were trained on.
    trained: f64,
    /// The most tokens of a step.
    largest: f64,
    currency: String,
    prices_of: String,
}

/// When a step ends, the next is under way already; so a run goes on only if two more fit.
const AHEAD: usize = 2;

impl Bill {
    /// Counts what was spent before on steps that a crash took out of the run's numbers.
    fn with_earlier(mut self, earlier: Option<Cost>) -> Self {
        let earlier = earlier.filter(|earlier| earlier.currency == self.currency);
        if let Some(earlier) = earlier.filter(|_| self.rate > 0.0) {
            self.trained = self.trained.max(earlier.amount / self.rate);
        }
        self
    }

    fn check(&self) -> anyhow::Result<()> {
        let Some(limit) = self.limit else {
            return Ok(());
        };
        let step = self.total / self.steps.max(1) as f64;
        let (spent, currency) = (self.spent(), &self.currency);
        if self.total > limit && spent + AHEAD as f64 * step > limit {
            let spent = match spent {
                0.0 => String::new(),
                spent => format!(" {spent:.4} {currency} are spent already."),
            };
            let problem = anyhow!(
                "--max-cost: {limit} {currency} is too little for {AHEAD} steps of about {step:.4} {currency}.{spent}"
            );
            return Err(problem.context(Hint("raise `--max-cost`, or make steps smaller")));
        }
        Ok(())
    }

    fn spent(&self) -> f64 {
        self.trained * self.rate
    }

    /// Returns the cost so far.
    pub(crate) fn cost(&self) -> Cost {
        Cost {
            amount: self.spent(),
            currency: self.currency.clone(),
            prices_of: self.prices_of.clone(),
        }
    }

    /// Returns whether the limit does not allow for the next steps.
    fn is_used_up(&self, step: usize) -> bool {
        let left = self.steps.saturating_sub(step + 1).min(AHEAD);
        let mean = self.total / self.steps.max(1) as f64;
        let next = (self.largest * self.rate).max(mean) * left as f64;
        self.limit.is_some_and(|limit| self.spent() + next > limit)
    }

    /// Takes a step that is done, and returns whether the run has to stop.
    pub(crate) fn step(&mut self, step: usize, tokens: f64) -> bool {
        self.trained += tokens;
        self.largest = self.largest.max(tokens);
        self.is_used_up(step)
    }
}

/// On a server that charges, says what a command takes and asks for confirmation, unless `yes` is
/// set.
pub(crate) async fn confirm(
    args: &CostArgs,
    backend: &Backend,
    tokens: &Tokens,
    yes: bool,
) -> anyhow::Result<()> {
    if !backend.is_hosted {
        return Ok(());
    }
    let prices = args.prices(backend)?.unwrap_or_else(Prices::bundled);
    note(statement(&backend.model, tokens, &prices));
    warn_of_age(&prices);
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

/// Warns of a price list that is too old to trust.
pub(crate) fn warn_of_age(prices: &Prices) {
    let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    if let Some(days) = prices.days_too_old(&today) {
        note(format_args!(
            "warning: the prices are those of {}, {days} days ago: compare them with the service's console",
            prices.date
        ));
    }
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
        let start = "tokens: 2000000 trained at most, billed to your key: about 0.88 USD";
        assert!(known.starts_with(start), "{known}");
        assert!(known.contains(&prices.date), "{known}");
        assert!(statement("my/model", &tokens, &prices).ends_with("is not known here"));
    }

    fn bill(limit: f64, trained: f64) -> Bill {
        Bill {
            limit: Some(limit),
            total: 10.0,
            steps: 100,
            rate: 0.001,
            trained,
            largest: 0.0,
            currency: "USD".to_owned(),
            prices_of: "2026-01-31".to_owned(),
        }
    }

    #[test]
    fn a_run_stops_while_the_steps_under_way_still_fit() {
        // A step of 100 tokens costs 0.1, so after three steps two more are 0.5.
        let mut budget = bill(0.5, 0.0);
        budget.check().unwrap();
        let stops: Vec<bool> = (0..4).map(|step| budget.step(step, 100.0)).collect();
        assert_eq!(stops, [false, false, false, true]);
        assert!(budget.spent() + 0.1 <= 0.5 + 1e-9, "one step is under way");
        // A larger step than before may come again.
        assert!(bill(0.5, 0.0).step(0, 200.0));
    }

    #[test]
    fn steps_that_a_crash_took_away_were_paid_for() {
        let earlier = |amount: f64, currency: &str| Cost {
            amount,
            currency: currency.to_owned(),
            prices_of: "2026-01-31".to_owned(),
        };
        let spent = |earlier| bill(5.0, 1000.0).with_earlier(earlier).spent();
        assert_eq!(spent(None), 1.0);
        assert_eq!(spent(Some(earlier(3.0, "USD"))), 3.0);
        assert_eq!(spent(Some(earlier(0.5, "USD"))), 1.0);
        assert_eq!(spent(Some(earlier(3.0, "EUR"))), 1.0);
    }

    #[test]
    fn a_budget_for_the_whole_run_never_stops_it_and_one_for_no_step_is_refused() {
        let mut whole = bill(10.0 + 1e-6, 0.0);
        whole.check().unwrap();
        assert!((0..100).all(|step| !whole.step(step, 100.0)));
        let error = bill(0.1, 0.0).check().unwrap_err();
        assert!(format!("{error:#}").contains("too little"), "{error:#}");
        assert!(bill(5.0, 4900.0).check().is_err(), "a run that goes on");
        assert!(bill(5.0, 4700.0).check().is_ok());
    }
}
