use super::*;
use tinkrs_types::TensorData;

const VOCAB: usize = 6;
const PROMPT: [u32; 4] = [5, 0, 3, 1];

fn logits(row: usize) -> Vec<f32> {
    (0..VOCAB)
        .map(|token| ((row * 7 + token * 5) % 11) as f32 * 0.3)
        .collect()
}

fn logprob(row: usize, token: u32) -> f32 {
    let logits = logits(row);
    let sum: f64 = logits.iter().map(|&z| f64::from(z).exp()).sum();
    (f64::from(logits[token as usize]) - sum.ln()) as f32
}

fn score(options: &SampleOptions, temperature: f32) -> SampleOutput {
    let mut scoring = Scoring::new(options, PROMPT.len(), VOCAB).unwrap();
    let rule = Rule::uncut(temperature);
    let mut scratch = DistributionScratch::default();
    let first = scoring.first_row().unwrap_or(PROMPT.len() - 1);
    for row in first..PROMPT.len() - 1 {
        let rng = SampleRng::new(3, 0);
        scoring
            .take_row(row, &logits(row), PROMPT[row + 1], &rule, rng, &mut scratch)
            .unwrap();
    }
    let mut output = SampleOutput::default();
    scoring.finish(&mut output);
    output
}

fn assert_close(got: f32, expected: f32) {
    assert!((got - expected).abs() < 1e-5, "{got}, not {expected}");
}

#[test]
fn prompt_log_probabilities_begin_with_nothing_and_are_never_scaled() {
    let options = SampleOptions {
        prompt_logprobs: true,
        ..SampleOptions::default()
    };
    let logprobs = score(&options, 0.3).prompt_logprobs.unwrap();
    assert_eq!(logprobs.len(), PROMPT.len());
    assert!(logprobs[0].is_nan());
    for position in 1..PROMPT.len() {
        assert_close(logprobs[position], logprob(position - 1, PROMPT[position]));
    }
}

#[test]
fn only_the_last_n_positions_are_scored() {
    let options = SampleOptions {
        prompt_logprobs: true,
        topk_prompt_logprobs: 2,
        prompt_logprobs_last_n: Some(1),
        ..SampleOptions::default()
    };
    assert_eq!(
        Scoring::new(&options, 4, VOCAB).unwrap().first_row(),
        Some(2)
    );
    let output = score(&options, 1.0);
    let scored: Vec<bool> = output
        .prompt_logprobs
        .unwrap()
        .iter()
        .map(|x| !x.is_nan())
        .collect();
    assert_eq!(scored, [false, false, false, true]);
    let topk = output.topk_prompt_logprobs.unwrap();
    assert_eq!(topk.len(), 4);
    let rows: Vec<bool> = (0..4)
        .map(|position| topk.row(position).is_some())
        .collect();
    assert_eq!(rows, [false, false, false, true]);
}

#[test]
fn the_likeliest_tokens_come_first() {
    let options = SampleOptions {
        topk_prompt_logprobs: 3,
        ..SampleOptions::default()
    };
    let topk = score(&options, 1.0).topk_prompt_logprobs.unwrap();
    assert!(topk.row(0).is_none());
    for position in 1..PROMPT.len() {
        let row: Vec<(u32, f32)> = topk.row(position).unwrap().collect();
        assert_eq!(row.len(), 3);
        assert!(row.is_sorted_by(|a, b| a.1 >= b.1));
        for (token, got) in row {
            assert_close(got, logprob(position - 1, token));
        }
    }
}

#[test]
fn named_tokens_are_scored_in_the_layout_of_the_request() {
    let dense = TensorData::from_rows(&[[-1_i64, -1], [4, -1], [0, 5]]).unwrap();
    let options = SampleOptions {
        target_prompt_logprobs: Some(dense),
        ..SampleOptions::default()
    };
    assert_eq!(
        Scoring::new(&options, 4, VOCAB).unwrap().first_row(),
        Some(1)
    );
    let result = score(&options, 1.0).target_prompt_logprobs.unwrap();
    assert_eq!(result.shape(), Some(&[3, 2][..]));
    let values = result.as_f32().unwrap();
    assert_eq!([values[0], values[1], values[3]], [0.0; 3]);
    assert_close(values[2], logprob(1, 4));
    assert_close(values[4], logprob(2, 0));
    assert_close(values[5], logprob(2, 5));

    let indices = CsrIndices {
        crow: vec![0, 0, 1, 3],
        col: vec![0, 0, 1],
    };
    let sparse = TensorData::sparse(vec![4_i64, 0, 5], indices.clone(), [3, 2]).unwrap();
    let options = SampleOptions {
        target_prompt_logprobs: Some(sparse),
        ..SampleOptions::default()
    };
    let result = score(&options, 1.0).target_prompt_logprobs.unwrap();
    assert_eq!(result.csr(), Some(&indices));
    assert_eq!(result.into_dense(0).as_f32().unwrap(), values);
}

#[test]
fn alternatives_are_drawn_at_the_temperature_of_the_request() {
    let options = SampleOptions {
        prompt_alt_tokens_k: 40,
        ..SampleOptions::default()
    };
    let drawn = score(&options, 2.0).prompt_alt_tokens.unwrap();
    assert_eq!(drawn.tokens.shape(), Some(&[3, 40][..]));
    let tokens = drawn.tokens.as_i64().unwrap();
    assert!(
        tokens[..40].iter().any(|&token| token != tokens[0]),
        "forty equal draws"
    );
    for (cell, (&token, &got)) in tokens
        .iter()
        .zip(drawn.logprobs.as_f32().unwrap())
        .enumerate()
    {
        let scaled: Vec<f64> = logits(cell / 40)
            .iter()
            .map(|&z| f64::from(z) / 2.0)
            .collect();
        let sum: f64 = scaled.iter().map(|z| z.exp()).sum();
        assert_close(got, (scaled[token as usize] - sum.ln()) as f32);
    }
    assert_eq!(
        drawn,
        score(&options, 2.0).prompt_alt_tokens.unwrap(),
        "the same seed"
    );
}

#[test]
fn a_prompt_of_one_token_has_no_rows() {
    let options = SampleOptions {
        prompt_logprobs: true,
        topk_prompt_logprobs: 2,
        prompt_alt_tokens_k: 2,
        ..SampleOptions::default()
    };
    let scoring = Scoring::new(&options, 1, VOCAB).unwrap();
    assert_eq!(scoring.first_row(), None);
    let mut output = SampleOutput::default();
    scoring.finish(&mut output);
    assert_eq!(output.prompt_logprobs.unwrap().len(), 1);
    assert_eq!(output.topk_prompt_logprobs.unwrap().len(), 1);
    assert_eq!(
        output.prompt_alt_tokens.unwrap().tokens.shape(),
        Some(&[0, 2][..])
    );
}

#[test]
fn nothing_asked_is_nothing_computed() {
    let scoring = Scoring::new(&SampleOptions::default(), 4, VOCAB).unwrap();
    assert_eq!(scoring.first_row(), None);
}
