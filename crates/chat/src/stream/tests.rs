use super::*;
use crate::format::{ChatMl, KNOWN};
use crate::testing::{renderer, tokenizer};

fn formats() -> impl Iterator<Item = Renderer> {
    let all = KNOWN.iter();
    all.map(|known| Renderer::with_format(tokenizer(), (known.make)()).unwrap())
}

/// Pushes a text token by token; returns the pieces and the whole.
fn pieces(renderer: &Renderer, tokens: &[u32]) -> (Vec<Delta>, Response) {
    let mut stream = renderer.stream(&[]).unwrap();
    let mut pieces = Vec::new();
    for token in tokens {
        pieces.push(stream.push(*token).unwrap());
    }
    let (rest, response) = stream.finish().unwrap();
    pieces.push(rest);
    (pieces, response)
}

#[test]
fn the_pieces_of_an_answer_are_the_answer() {
    let texts = [
        "Hello there, how are you?",
        "  white space \n\n on both sides \n",
        "Zoë says: 🦀 日本語 and 👩‍👩‍👧",
        "Fine.\n\nUser: and you?",
        "a line\n\nUse it.",
        "<think>\nhm\n</think>\n\nhello",
        "<think>\none two three\n\n four </th not yet",
        "x <tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>\ny",
        "<tool_call>\n{oops\n</tool_call> z",
        "<tool_call>\n{\"name\"",
        "{\"name\": \"add\", \"parameters\": {}}",
        "1 < 2 and <",
        "",
    ];
    for renderer in formats() {
        for text in texts {
            let mut tokens = renderer.vocabulary().tokenizer().encode(text).unwrap();
            for stopped in [false, true] {
                if let (true, tinkrs_types::sampling::Stop::AnyToken(stops)) =
                    (stopped, renderer.stop())
                {
                    tokens.extend([stops[0]]);
                }
                let (pieces, response) = pieces(&renderer, &tokens);
                assert_eq!(response, renderer.parse(&tokens).unwrap());
                let format = renderer.format().name();
                let join = |part: fn(&Delta) -> &str| pieces.iter().map(part).collect::<String>();
                let content = join(|piece| &piece.content);
                assert_eq!(content, response.message.content, "{format}: {text:?}");
                let thinking = join(|piece| &piece.thinking);
                let thought = response.message.thinking.unwrap_or_default();
                assert_eq!(thinking, thought, "{format}: {text:?}");
            }
        }
    }
}

#[test]
fn arguments_of_a_call_come_before_it_is_complete() {
    let calls = "x <tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": [1, 2]}}\n</tool_call>\n\
        <tool_call>\n{\"arguments\": {\"b\": 1}, \"name\": \"sub\"}\n</tool_call> y";
    let renderer = renderer(ChatMl);
    let tokens = renderer.vocabulary().tokenizer().encode(calls).unwrap();
    let (pieces, response) = pieces(&renderer, &tokens);
    let parts = || pieces.iter().flat_map(|piece| &piece.call_parts);
    let arguments = |index: usize| {
        let parts = parts().filter(|part| part.index == index);
        parts
            .map(|part| part.arguments.as_str())
            .collect::<String>()
    };
    assert_eq!(arguments(0), r#"{"a": [1, 2]}"#);
    assert!(
        parts().filter(|part| part.index == 0).count() > 3,
        "{pieces:?}"
    );
    assert_eq!(
        arguments(1),
        r#"{"b": 1}"#,
        "in one piece: its name comes last"
    );
    let names: Vec<_> = parts().filter_map(|part| part.name.as_deref()).collect();
    assert_eq!(names, ["add", "sub"]);
    let whole = pieces.iter().flat_map(|piece| &piece.tool_calls).cloned();
    assert_eq!(whole.collect::<Vec<_>>(), response.message.tool_calls);
    let last = pieces.last().unwrap();
    assert!(
        last.tool_calls.is_empty(),
        "both were closed before the end"
    );
}

#[test]
fn a_call_that_turns_out_to_be_none_is_repeated_as_words() {
    let renderer = renderer(ChatMl);
    let text = "<tool_call>\n{\"name\": \"add\", \"arguments\": {oops}}\n</tool_call>";
    let tokens = renderer.vocabulary().tokenizer().encode(text).unwrap();
    let (pieces, response) = pieces(&renderer, &tokens);
    assert!(response.message.tool_calls.is_empty());
    let content: String = pieces.iter().map(|piece| piece.content.as_str()).collect();
    assert_eq!(content, text);
}

/// Reading must not take longer for each token the longer an answer is, whatever is in it.
#[test]
fn the_work_is_a_fixed_multiple_of_the_text() {
    let endless = [
        "word ",
        "\n",
        "\n\n",
        " ",
        "<",
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "a < b ",
        "<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>",
        "{\"name\": {",
        "\u{FFFD}",
        "é🦀",
        "<|python_tag|>",
        "</th",
        "User: hm\n\nUser",
    ];
    for renderer in formats() {
        for piece in endless {
            for begin in ["", "<think>\n"] {
                let text = begin.to_owned() + &piece.repeat(1 + 400 / piece.len());
                let tokens = renderer.vocabulary().tokenizer().encode(&text).unwrap();
                let mut stream = renderer.stream(&[]).unwrap();
                for token in &tokens {
                    stream.push(*token).unwrap();
                }
                let (work, length) = (stream.work, stream.text.len());
                let most = SHORT + (READINGS + 3) * length;
                assert!(
                    work <= most,
                    "{}: {work} for {length} bytes of {piece:?}",
                    renderer.format().name()
                );
            }
        }
    }
}

#[test]
fn plain_words_are_not_read_again() {
    for renderer in formats() {
        let text = "The quick brown fox\njumps over the lazy dog. 1 < 2 ";
        let text = text.repeat(100);
        let tokens = renderer.vocabulary().tokenizer().encode(&text).unwrap();
        let mut stream = renderer.stream(&[]).unwrap();
        let said = tokens
            .iter()
            .map(|token| stream.push(*token).unwrap().content);
        let said: String = said.collect();
        let name = renderer.format().name();
        assert!(
            said.len() + 8 > text.trim_end().len(),
            "{name}: {} of {}",
            said.len(),
            text.len()
        );
        assert!(
            stream.work < 3 * text.len(),
            "{name}: {} of {}",
            stream.work,
            text.len()
        );
    }
}

#[test]
fn text_comes_before_the_answer_ends_and_never_half_a_character() {
    let renderer = renderer(ChatMl);
    let text = "one two three 🦀 four";
    let tokens = renderer.vocabulary().encode_text(text).unwrap();
    let (pieces, _) = pieces(&renderer, &tokens);
    let contents = pieces.iter().map(|piece| piece.content.as_str());
    let early: Vec<_> = contents.filter(|piece| !piece.is_empty()).collect();
    assert!(early.len() > 3, "{pieces:?}");
    let half = |piece: &&&str| piece.contains(char::REPLACEMENT_CHARACTER);
    assert_eq!(early.iter().find(half), None);
}

#[test]
fn a_thought_that_the_prompt_begins_is_not_said() {
    let renderer = renderer(ChatMl);
    let encode = |text: &str| renderer.vocabulary().tokenizer().encode(text).unwrap();
    let mut stream = renderer.stream(&encode("a prompt <think>\n")).unwrap();
    let (mut said, mut thought) = (String::new(), String::new());
    for token in encode("I wonder.\n</think>\n\nYes.") {
        let delta = stream.push(token).unwrap();
        said += &delta.content;
        thought += &delta.thinking;
    }
    assert_eq!(thought, "I wonder.", "before the answer ends");
    let (rest, response) = stream.finish().unwrap();
    assert_eq!(said + &rest.content, "Yes.");
    assert_eq!(response.message.thinking.as_deref(), Some("I wonder."));
}

#[test]
fn a_prefilled_answer_is_read_as_one_with_what_the_model_adds() {
    let renderer = renderer(ChatMl);
    let mut stream = renderer.stream_after("The weather is");
    let mut said = String::new();
    for token in renderer.vocabulary().encode_continuation(" fine.").unwrap() {
        said += &stream.push(token).unwrap().content;
    }
    let (rest, response) = stream.finish().unwrap();
    assert_eq!(said + &rest.content, "The weather is fine.");
    assert_eq!(response.message.content, "The weather is fine.");
}
