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

#[test]
fn several_may_write_it_into_one_folder_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let weights = std::sync::Mutex::new(std::collections::BTreeSet::new());
    for _ in 0..20 {
        std::fs::remove_dir_all(folder.path()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    tinkrs_nano::write_to(folder.path()).unwrap();
                    let found = std::fs::read(folder.path().join("model.safetensors")).unwrap();
                    weights.lock().unwrap().insert(found.len());
                });
            }
        });
    }
    assert_eq!(weights.lock().unwrap().len(), 1, "each is whole");
    let files = std::fs::read_dir(folder.path()).unwrap();
    let mut names = files.map(|file| file.unwrap().file_name());
    assert!(names.all(|name| !name.to_string_lossy().ends_with("partial")));
}
