//! The text that the model was trained on: small talk, small facts and small stories, made up from
//! lists of words.
//!
//! ```
//! let mut random = fastrand::Rng::with_seed(1);
//! let [question, answer] = tinkrs_nano::text::exchange(&mut random);
//! assert!(!question.is_empty() && !answer.is_empty());
//! ```

mod story;
mod words;

use fastrand::Rng;
use words::{ANIMALS, COLORED, FOODS, NAMES, NUMBERS, OPPOSITES, PLACES, RHYMES, TOYS};

/// A question and its answer.
pub type Exchange = [String; 2];

/// Makes up a question and its answer.
pub fn exchange(random: &mut Rng) -> Exchange {
    // Stories take the most to learn, so there are the most of them.
    match random.u32(0..24) {
        0 => greeting(random),
        1 => about_itself(random),
        2 | 3 => color(random),
        4 | 5 => opposite(random),
        6 | 7 => animal(random),
        8 => counting(random),
        9 | 10 => sum(random),
        11..=13 => echo(random),
        14 => list(random),
        15 => yes_or_no(random),
        16 => rhyme(random),
        17 | 18 => sentence(random),
        _ => {
            let request = story::request(random);
            let answer = story::answer(random, &request);
            [request, answer]
        }
    }
}

/// Makes up a conversation of one to three exchanges.
pub fn conversation(random: &mut Rng) -> Vec<Exchange> {
    let length = [1, 1, 1, 2, 2, 3];
    (0..*pick(random, &length))
        .map(|_| exchange(random))
        .collect()
}

/// Picks one of several things.
fn pick<'a, T>(random: &mut Rng, things: &'a [T]) -> &'a T {
    &things[random.usize(..things.len())]
}

fn pair(question: impl Into<String>, answer: impl Into<String>) -> Exchange {
    [question.into(), answer.into()]
}

fn greeting(random: &mut Rng) -> Exchange {
    let hello = pick(
        random,
        &[
            "Hello!",
            "Hi!",
            "Good morning!",
            "Hello there.",
            "Hi there!",
        ],
    );
    match random.u32(0..4) {
        0 => {
            let name = pick(random, &NAMES);
            pair(
                format!("{hello} I am {name}."),
                format!("Hello, {name}! It is nice to meet you."),
            )
        }
        1 => pair("How are you?", "I am well, thank you. How are you?"),
        2 => pair(
            *pick(random, &["Thank you!", "Thanks!", "Thank you very much."]),
            "You are welcome!",
        ),
        _ => pair(*hello, "Hello! How can I help you?"),
    }
}

fn about_itself(random: &mut Rng) -> Exchange {
    let questions = [
        "Who are you?",
        "What are you?",
        "What is your name?",
        "Tell me about you.",
    ];
    match random.u32(0..3) {
        0 => pair(
            "What can you do?",
            "I can count, name colors and tell short stories.",
        ),
        _ => pair(
            *pick(random, &questions),
            "I am Nano, a very small language model.",
        ),
    }
}

fn color(random: &mut Rng) -> Exchange {
    let (thing, color) = pick(random, &COLORED);
    match random.u32(0..3) {
        0 => pair(
            format!("Name something {color}."),
            format!("{} is {color}.", upper(thing)),
        ),
        1 => pair(
            format!("Tell me the color of {thing}."),
            format!("{} is {color}.", upper(thing)),
        ),
        _ => pair(
            format!("What color is {thing}?"),
            format!("{} is {color}.", upper(thing)),
        ),
    }
}

fn opposite(random: &mut Rng) -> Exchange {
    let (one, other) = *pick(random, &OPPOSITES);
    let (one, other) = if random.bool() {
        (one, other)
    } else {
        (other, one)
    };
    pair(
        format!("What is the opposite of {one}?"),
        format!("The opposite of {one} is {other}."),
    )
}

fn animal(random: &mut Rng) -> Exchange {
    let (animal, sound, home) = pick(random, &ANIMALS);
    match random.u32(0..2) {
        0 => pair(
            format!("What does a {animal} say?"),
            format!("A {animal} says {sound}."),
        ),
        _ => pair(
            format!("Where does a {animal} live?"),
            format!("A {animal} lives in the {home}."),
        ),
    }
}

fn counting(random: &mut Rng) -> Exchange {
    let end = random.usize(2..=10);
    let numbers = NUMBERS[1..=end].join(", ");
    let number = NUMBERS[end];
    match random.u32(0..4) {
        0 => pair(
            format!("What comes after {number}?"),
            format!("After {number} comes {}.", NUMBERS[end + 1]),
        ),
        _ => pair(
            format!("Count to {number}."),
            format!("{}.", upper(&numbers)),
        ),
    }
}

fn sum(random: &mut Rng) -> Exchange {
    let (a, b) = (random.usize(1..=6), random.usize(1..=6));
    let (one, two, sum) = (NUMBERS[a], NUMBERS[b], NUMBERS[a + b]);
    pair(
        format!("What is {one} plus {two}?"),
        format!("{} plus {two} is {sum}.", upper(one)),
    )
}

fn echo(random: &mut Rng) -> Exchange {
    let said = match random.u32(0..3) {
        0 => pick(random, &COLORED).1.to_owned(),
        1 => format!(
            "the {} likes {}",
            pick(random, &ANIMALS).0,
            pick(random, &FOODS)
        ),
        _ => {
            let (name, toy) = (pick(random, &NAMES), pick(random, &TOYS));
            format!("{name} has a {toy}")
        }
    };
    let ask = pick(random, &["Say:", "Repeat after me:", "Please say:"]);
    pair(format!("{ask} {said}."), format!("{}.", upper(&said)))
}

fn list(random: &mut Rng) -> Exchange {
    let three = |random: &mut Rng, words: Vec<&str>| {
        let mut words = words;
        random.shuffle(&mut words);
        format!("{}, {} and {}.", upper(words[0]), words[1], words[2])
    };
    match random.u32(0..3) {
        0 => pair(
            "Name three animals.",
            three(random, ANIMALS.iter().map(|animal| animal.0).collect()),
        ),
        1 => pair("Name three colors.", {
            let mut colors: Vec<_> = COLORED.iter().map(|thing| thing.1).collect();
            colors.sort_unstable();
            colors.dedup();
            three(random, colors)
        }),
        _ => pair("Name three things to eat.", three(random, FOODS.to_vec())),
    }
}

fn yes_or_no(random: &mut Rng) -> Exchange {
    let animal = pick(random, &ANIMALS).0;
    let food = *pick(random, &FOODS);
    match random.u32(0..4) {
        0 => pair(
            format!("Is a {animal} an animal?"),
            format!("Yes, a {animal} is an animal."),
        ),
        1 => pair(
            format!("Can I eat {food}?"),
            format!("Yes, you can eat {food}."),
        ),
        2 => pair(
            format!("Is a {animal} a color?"),
            format!("No, a {animal} is an animal."),
        ),
        _ => pair(
            format!("Is {food} an animal?"),
            format!("No, {food} is something to eat."),
        ),
    }
}

fn rhyme(random: &mut Rng) -> Exchange {
    let (one, other) = *pick(random, &RHYMES);
    let (one, other) = if random.bool() {
        (one, other)
    } else {
        (other, one)
    };
    pair(
        format!("What rhymes with {one}?"),
        format!("{} rhymes with {one}.", upper(other)),
    )
}

fn sentence(random: &mut Rng) -> Exchange {
    let (animal, _, home) = *pick(random, &ANIMALS);
    let (thing, color) = pick(random, &COLORED);
    match random.u32(0..3) {
        0 => pair(
            format!("Write a sentence about a {animal}."),
            format!("The {animal} lives in the {home}."),
        ),
        1 => pair(
            format!("Write a sentence about {thing}."),
            format!("I can see that {thing} is {color}."),
        ),
        _ => {
            let (name, place) = (pick(random, &NAMES), pick(random, &PLACES));
            pair(
                format!("Write a sentence about {name}."),
                format!("{name} goes to the {place} every day."),
            )
        }
    }
}

/// Starts a text with a capital letter.
fn upper(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_text_and_there_is_much_of_it() {
        let make = |seed| {
            let mut random = Rng::with_seed(seed);
            (0..2000).map(|_| exchange(&mut random)).collect::<Vec<_>>()
        };
        assert_eq!(make(1), make(1));
        let mut all = make(1);
        all.sort();
        all.dedup();
        assert!(all.len() > 1000, "{} different ones", all.len());
        for [question, answer] in &all {
            assert!(
                question.len() > 2 && answer.ends_with(['.', '!', '?']),
                "{question} {answer}"
            );
        }
    }
}
