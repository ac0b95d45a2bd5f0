//! What the hosted service charges, as of a date.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The prices of a model for a million tokens, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Of tokens that a sampler reads.
    pub prefill: Option<f64>,
    /// Of tokens that it writes.
    pub sample: Option<f64>,
    /// Of tokens that a trainer reads.
    pub train: Option<f64>,
}

/// A list of models and prices with its date.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// When the list was made, as `YYYY-MM-DD`. Say it wherever a cost is shown.
    pub date: String,
    /// The currency.
    pub currency: String,
    /// Prices by the model's name.
    pub models: BTreeMap<String, Price>,
}

/// A list that is older, in days, should be looked at.
const OLD: i64 = 60;

impl Prices {
    /// Returns the list that comes with this crate. It is not an official price list: see the file.
    pub fn bundled() -> Self {
        Self::parse(include_str!("prices.toml")).expect("the bundled list is tested")
    }

    /// Reads a list in the form of the bundled file.
    ///
    /// # Errors
    /// If the text is not such a list.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let prices: Self =
            toml::from_str(text).map_err(|error| Error::setting("prices", error.to_string()))?;
        if day(&prices.date).is_none() {
            let problem = format!("date: `{}`, expected a day as YYYY-MM-DD", prices.date);
            return Err(Error::setting("prices", problem));
        }
        for (model, price) in &prices.models {
            for price in [price.prefill, price.sample, price.train] {
                if price.is_some_and(|price| !(price.is_finite() && price >= 0.0)) {
                    let problem = format!("{model}: a price is not a number from 0 on");
                    return Err(Error::setting("prices", problem));
                }
            }
        }
        Ok(prices)
    }

    /// Returns how many days old the list is, if that is too many to trust it. `today` is `YYYY-MM-DD`.
    pub fn days_too_old(&self, today: &str) -> Option<i64> {
        let age = day(today)? - day(&self.date)?;
        (age > OLD).then_some(age)
    }
}

/// Returns the number of a day in the Gregorian calendar, counted from some day long ago.
fn day(date: &str) -> Option<i64> {
    let mut parts = date.splitn(3, '-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    let form = (year.len(), month.len(), day.len()) == (4, 2, 2);
    let (year, month, day): (i64, i64, i64) =
        (year.parse().ok()?, month.parse().ok()?, day.parse().ok()?);
    if !form || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March here, so that the day of leap years is the last.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    Some(365 * year + leap_days + (153 * month + 2) / 5 + day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tokens;

    #[test]
    fn the_bundled_prices_are_dated_and_what_has_none_has_no_cost() {
        let prices = Prices::bundled();
        let trained = Tokens {
            train: 2_000_000,
            ..Tokens::default()
        };
        assert_eq!(trained.cost("Qwen/Qwen3-8B", &prices), Some(0.88));
        assert_eq!(trained.cost("tinkrs/nano", &prices), None, "not listed");
        let model = "Qwen/Qwen3.6-27B";
        assert_eq!(trained.cost(model, &prices), None, "no price to train");
        let read = Tokens {
            prefill: 1_000_000,
            ..Tokens::default()
        };
        assert_eq!(read.cost(model, &prices), Some(1.86));
        assert_eq!(Tokens::default().cost(model, &prices), Some(0.0));
    }

    #[test]
    fn every_model_in_the_list_has_a_chat_format() {
        for model in Prices::bundled().models.keys() {
            assert!(tinkrs_chat::format::of_model(model).is_some(), "{model}");
        }
    }

    #[test]
    fn a_list_of_more_than_sixty_days_is_old() {
        let mut prices = Prices::bundled();
        prices.date = "2027-12-31".to_owned();
        assert_eq!(prices.days_too_old("2027-12-31"), None);
        assert_eq!(prices.days_too_old("2028-02-29"), None, "60 days");
        assert_eq!(prices.days_too_old("2028-03-01"), Some(61));
        assert_eq!(prices.days_too_old("2029-03-01"), Some(426));
    }

    #[test]
    fn a_list_that_makes_no_sense_is_refused() {
        let list = |date: &str, price: &str| {
            let text =
                format!("date = \"{date}\"\ncurrency = \"USD\"\n[models.\"m\"]\ntrain = {price}");
            Prices::parse(&text).map_err(|error| error.to_string())
        };
        assert!(list("2026-01-31", "1.5").is_ok());
        assert!(list("today", "1.5").unwrap_err().contains("YYYY-MM-DD"));
        assert!(list("2026-13-01", "1.5").is_err());
        assert!(
            list("2026-01-31", "-1.0")
                .unwrap_err()
                .contains("from 0 on")
        );
        assert!(list("2026-01-31", "\"x\"").is_err());
    }
}
