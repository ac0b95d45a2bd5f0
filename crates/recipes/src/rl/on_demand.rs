//! Problems that are made of the rows of a file when their turn comes.

use super::env::{Env, EnvFuture, Problem};
use super::episode::Episode;
use crate::data::{Store, TextRow};
use std::sync::Arc;
use tinkrs::{BoxError, SamplingParams};

/// Makes a problem of a row.
type Make<P> = dyn Fn(&str) -> Result<P, BoxError> + Send + Sync;

/// Returns a problem for each row, which is read and made into one for each episode: only the place of the row stays in
/// memory, so that a file of questions may be as large as it likes. All of them are sampled with the same `params`.
pub fn on_demand<P: Problem + 'static>(
    rows: Store<TextRow>,
    params: SamplingParams,
    make: impl Fn(&str) -> Result<P, BoxError> + Send + Sync + 'static,
) -> Vec<Arc<dyn Problem>> {
    let count = rows.len();
    let rows = Arc::new(Rows {
        rows,
        params,
        make: Box::new(make),
    });
    let problem = |index| {
        let rows = Arc::clone(&rows);
        Arc::new(OnDemand { rows, index }) as Arc<dyn Problem>
    };
    (0..count).map(problem).collect()
}

struct Rows<P> {
    rows: Store<TextRow>,
    params: SamplingParams,
    make: Box<Make<P>>,
}

struct OnDemand<P> {
    rows: Arc<Rows<P>>,
    index: usize,
}

impl<P> OnDemand<P> {
    fn problem(&self) -> Result<P, BoxError> {
        let row = self.rows.rows.get(self.index)?;
        (self.rows.make)(&row.text)
    }
}

impl<P: Problem + 'static> Problem for OnDemand<P> {
    fn start(&self) -> EnvFuture<'_, Box<dyn Env>> {
        Box::pin(async move { self.problem()?.start().await })
    }

    fn params(&self) -> SamplingParams {
        self.rows.params.clone()
    }

    fn identity(&self) -> Vec<u32> {
        // A row that cannot be read any more is not what the run began with, and no episode can start from it.
        let problem = self.problem();
        problem.map_or_else(|_| Vec::new(), |problem| problem.identity())
    }

    fn compare<'a>(&'a self, group: &'a [Episode]) -> EnvFuture<'a, Vec<f64>> {
        Box::pin(async move { self.problem()?.compare(group).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rl::Question;
    use crate::testing;
    use tinkrs_chat::{Conversation, Message};

    #[tokio::test]
    async fn problems_of_rows_in_a_file_are_those_in_memory() {
        let renderer = testing::renderer();
        let question = move |text: &str| {
            let asked = Conversation::from([Message::user(text)]);
            let question = Question::new(&renderer, &asked, 4, |_| 1.0);
            question.map_err(BoxError::from)
        };
        let texts = ["a question", "is it fine", "what is the weather"];
        let mut rows = Store::with_limit(0);
        for text in texts {
            let text = text.to_owned();
            rows.push(TextRow { text, tokens: 0 }).unwrap();
        }
        let in_memory = texts.map(|text| question(text).unwrap());
        let kept = on_demand(rows, in_memory[0].params(), question);
        assert_eq!(kept.len(), 3);
        for (kept, expected) in kept.iter().zip(&in_memory) {
            assert_eq!(kept.identity(), expected.identity());
            assert_eq!(kept.params(), expected.params());
            let (game, other) = (kept.start().await.unwrap(), expected.start().await.unwrap());
            assert_eq!(game.observe().unwrap(), other.observe().unwrap());
        }
    }

    #[tokio::test]
    async fn a_row_that_makes_no_problem_is_an_episode_that_fails() {
        let mut rows = Store::with_limit(0);
        let text = "nothing".to_owned();
        rows.push(TextRow { text, tokens: 0 }).unwrap();
        let none = |_: &str| Err::<Question, BoxError>("no question".into());
        let kept = on_demand(rows, SamplingParams::new(1), none);
        let error = kept[0].start().await.err().unwrap();
        assert_eq!(error.to_string(), "no question");
        assert!(kept[0].identity().is_empty());
    }
}
