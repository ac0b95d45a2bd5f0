//! Stories of a few sentences.

use fastrand::Rng;

use super::words::{ANIMALS, FOODS, NAMES, PLACES, TOYS};
use super::{pick, upper};

/// Asks for a story, about something or about anything.
pub(super) fn request(random: &mut Rng) -> String {
    let animal = pick(random, &ANIMALS).0;
    let ask = pick(
        random,
        &["Tell me a story", "Write a story", "Tell a short story"],
    );
    match random.u32(0..4) {
        0 => format!("{ask}."),
        1 => format!("{ask} about {}.", pick(random, &NAMES)),
        2 => format!("{ask} about a {}.", pick(random, &TOYS)),
        _ => format!("{ask} about a {animal}."),
    }
}

/// Tells a story about what a request names.
pub(super) fn answer(random: &mut Rng, request: &str) -> String {
    let subject = request
        .split(" about ")
        .nth(1)
        .map(|rest| rest.trim_end_matches('.'));
    let name = subject.filter(|subject| NAMES.contains(subject));
    let name = *name.as_ref().unwrap_or(pick(random, &NAMES));
    let noun = subject.and_then(|subject| subject.strip_prefix("a "));
    match noun {
        Some(animal) if ANIMALS.iter().any(|known| known.0 == animal) => {
            about_animal(random, animal)
        }
        Some(toy) => about_toy(random, name, toy),
        None => about_child(random, name),
    }
}

fn about_animal(random: &mut Rng, animal: &str) -> String {
    let known = ANIMALS.iter().find(|known| known.0 == animal);
    let (_, sound, home) = known.unwrap_or(&ANIMALS[0]);
    let (place, food) = (pick(random, &PLACES), pick(random, &FOODS));
    let kind = pick(random, &["little", "big", "happy", "old", "brave", "shy"]);
    let start = match random.u32(0..2) {
        0 => format!("Once there was a {kind} {animal} who lived in the {home}."),
        _ => format!("A {kind} {animal} lived in the {home}."),
    };
    let middle = match random.u32(0..3) {
        0 => format!("One day the {animal} went to the {place} and found some {food}."),
        1 => format!("Every day the {animal} looked for {food} near the {place}."),
        _ => format!("The {animal} was hungry and wanted {food}."),
    };
    let end = match random.u32(0..3) {
        0 => format!("It said {sound} and was happy."),
        1 => format!("Then the {animal} went home to sleep."),
        _ => format!("A friend came, and they ate {food} together."),
    };
    format!("{start} {middle} {end}")
}

fn about_toy(random: &mut Rng, name: &str, toy: &str) -> String {
    let place = pick(random, &PLACES);
    let other = pick(random, &NAMES);
    let start = match random.u32(0..2) {
        0 => format!("{name} had a new {toy}."),
        _ => format!("Once {name} found a {toy} at the {place}."),
    };
    let middle = match random.u32(0..3) {
        0 => format!("{name} took the {toy} to the {place}."),
        1 => format!("The {toy} was lost, and {name} was sad."),
        _ => format!("{other} wanted to play with the {toy} too."),
    };
    let end = match random.u32(0..3) {
        0 => format!("They played with the {toy} all day."),
        1 => format!("In the end {other} and {name} were friends."),
        _ => format!("Then {name} put the {toy} away and went to bed."),
    };
    format!("{start} {middle} {end}")
}

fn about_child(random: &mut Rng, name: &str) -> String {
    let (place, food, toy) = (
        pick(random, &PLACES),
        pick(random, &FOODS),
        pick(random, &TOYS),
    );
    let animal = pick(random, &ANIMALS).0;
    let start = match random.u32(0..2) {
        0 => format!("One morning {name} went to the {place}."),
        _ => format!("{name} liked the {place} very much."),
    };
    let middle = match random.u32(0..3) {
        0 => format!("There {name} saw a {animal} with a {toy}."),
        1 => format!("{name} met a {animal} and gave it some {food}."),
        _ => format!(
            "{} {name} ate {food} and looked at the sky.",
            upper("there")
        ),
    };
    let end = match random.u32(0..3) {
        0 => format!("{name} laughed and ran home."),
        1 => format!("The {animal} was very happy."),
        _ => "It was a good day.".to_owned(),
    };
    format!("{start} {middle} {end}")
}
