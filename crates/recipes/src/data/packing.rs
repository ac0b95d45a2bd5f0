//! Joining short examples into longer sequences.

use tinkrs_chat::Example;

/// Joins examples into sequences of at most `max_tokens`, the longest first into the first
/// sequence that has room.
pub(super) fn pack(examples: Vec<Example>, max_tokens: usize) -> Vec<Example> {
    let mut order: Vec<usize> = (0..examples.len()).collect();
    // The sort is stable, so the result depends on nothing but the input.
    order.sort_by_key(|index| std::cmp::Reverse(examples[*index].tokens.len()));
    let mut sequences: Vec<Example> = Vec::new();
    for index in order {
        let Example {
            tokens,
            mut weights,
        } = examples[index].clone();
        if let Some(first) = weights.first_mut() {
            *first = 0.0;
        }
        let room = |sequence: &&mut Example| sequence.tokens.len() + tokens.len() <= max_tokens;
        match sequences.iter_mut().find(room) {
            Some(sequence) => {
                sequence.tokens.extend(tokens);
                sequence.weights.extend(weights);
            }
            None => sequences.push(Example { tokens, weights }),
        }
    }
    sequences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_keeps_every_token_that_counts() {
        let example = |length: usize| Example {
            tokens: vec![length as u32; length],
            weights: vec![1.0; length],
        };
        let examples: Vec<_> = [3, 7, 2, 5, 12].map(example).into();
        let counted = |examples: &[Example]| examples.iter().map(Example::counted).sum::<usize>();
        let packed = pack(examples.clone(), 10);
        assert_eq!(counted(&packed), counted(&examples));
        let lengths: Vec<_> = packed.iter().map(|example| example.tokens.len()).collect();
        assert_eq!(lengths, [12, 10, 7], "what is too long stays alone");
        assert_eq!(packed[1].tokens, [7, 7, 7, 7, 7, 7, 7, 3, 3, 3]);
        assert_eq!(
            packed[1].weights[7], 0.0,
            "nothing predicts the next example's first token"
        );
    }
}
