//! The words that the text is made of.

pub(super) const NAMES: [&str; 16] = [
    "Ana", "Ben", "Cleo", "Dan", "Emma", "Finn", "Gia", "Hugo", "Ida", "Jon", "Kim", "Leo", "Mia",
    "Noah", "Ola", "Tom",
];

/// Animals with what they say and where they live.
pub(super) const ANIMALS: [(&str, &str, &str); 16] = [
    ("cat", "meow", "house"),
    ("dog", "woof", "house"),
    ("cow", "moo", "barn"),
    ("pig", "oink", "barn"),
    ("duck", "quack", "pond"),
    ("frog", "ribbit", "pond"),
    ("bird", "tweet", "tree"),
    ("owl", "hoo", "forest"),
    ("bear", "growl", "forest"),
    ("fox", "yip", "forest"),
    ("lion", "roar", "grass"),
    ("sheep", "baa", "field"),
    ("horse", "neigh", "field"),
    ("bee", "buzz", "garden"),
    ("mouse", "squeak", "hole"),
    ("fish", "nothing", "sea"),
];

/// Things with their colors.
pub(super) const COLORED: [(&str, &str); 20] = [
    ("the sky", "blue"),
    ("the sea", "blue"),
    ("the sun", "yellow"),
    ("a lemon", "yellow"),
    ("a banana", "yellow"),
    ("the grass", "green"),
    ("a frog", "green"),
    ("a leaf", "green"),
    ("the snow", "white"),
    ("milk", "white"),
    ("a cloud", "white"),
    ("the night", "black"),
    ("coal", "black"),
    ("an apple", "red"),
    ("a rose", "red"),
    ("a tomato", "red"),
    ("a carrot", "orange"),
    ("an orange", "orange"),
    ("a bear", "brown"),
    ("wood", "brown"),
];

pub(super) const OPPOSITES: [(&str, &str); 18] = [
    ("hot", "cold"),
    ("big", "small"),
    ("fast", "slow"),
    ("up", "down"),
    ("day", "night"),
    ("happy", "sad"),
    ("old", "new"),
    ("good", "bad"),
    ("light", "dark"),
    ("loud", "quiet"),
    ("open", "closed"),
    ("wet", "dry"),
    ("full", "empty"),
    ("left", "right"),
    ("hard", "soft"),
    ("high", "low"),
    ("first", "last"),
    ("near", "far"),
];

pub(super) const RHYMES: [(&str, &str); 12] = [
    ("cat", "hat"),
    ("dog", "fog"),
    ("bear", "chair"),
    ("mouse", "house"),
    ("bee", "tree"),
    ("fox", "box"),
    ("sun", "fun"),
    ("ball", "wall"),
    ("night", "light"),
    ("cake", "lake"),
    ("star", "car"),
    ("moon", "spoon"),
];

pub(super) const FOODS: [&str; 12] = [
    "bread", "cake", "soup", "rice", "fish", "cheese", "apples", "honey", "nuts", "berries",
    "milk", "carrots",
];

pub(super) const TOYS: [&str; 10] = [
    "ball", "kite", "book", "drum", "boat", "hat", "box", "bell", "lamp", "car",
];

pub(super) const PLACES: [&str; 10] = [
    "park", "forest", "beach", "garden", "school", "market", "farm", "lake", "hill", "river",
];

/// Numbers in words, by themselves.
pub(super) const NUMBERS: [&str; 13] = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve",
];
