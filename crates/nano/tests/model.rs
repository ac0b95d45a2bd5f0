//! The model in the repository is whole, and speaks.

use std::sync::Arc;

use tinkrs_engine::sample::{Event, SampleRequest, Sampler, SamplerSettings};
use tinkrs_engine::weights::HuggingFaceFolder;
use tinkrs_engine::{Model, Precision, Threads};
use tokenizers::Tokenizer;

fn answer(model: &Arc<Model>, tokenizer: &Tokenizer, question: &str) -> String {
    let prompt = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
    let prompt = tokenizer.encode(prompt, false).unwrap();
    let mut sampler = Sampler::new(Arc::clone(model), SamplerSettings::default());
    let mut request = SampleRequest::new(prompt.get_ids().to_vec(), 32);
    request.params.temperature = 0.0;
    sampler.submit(request).unwrap();
    loop {
        for event in sampler.step() {
            match event {
                Event::Finished { output, .. } => {
                    let tokens = &output.sequences[0].tokens;
                    return tokenizer.decode(tokens, true).unwrap();
                }
                Event::Failed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
    }
}

#[test]
fn it_answers_simple_questions() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        tinkrs_nano::write_to(folder.path()).unwrap();
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
    let weights = HuggingFaceFolder::open(folder.path()).unwrap();
    let model = Model::load(&weights, Precision::Stored, &Threads::new(1).unwrap()).unwrap();
    let model = Arc::new(model);
    let tokenizer = Tokenizer::from_file(folder.path().join("tokenizer.json")).unwrap();
    for (question, expected) in [
        ("What color is the sky?", "The sky is blue."),
        ("What does a cow say?", "A cow says moo."),
        ("Count to three.", "One, two, three."),
        ("Say: blue.", "Blue."),
    ] {
        assert_eq!(answer(&model, &tokenizer, question), expected, "{question}");
    }
}
