//! Whether two answers to a mathematical question are the same.
//!
//! The answer of a model is what stands in its last `\boxed{}`, else behind `####` or "answer is", else its last number or line. Answers are
//! compared exactly, as quotients of polynomials with fractions for coefficients: 0.5 is `\frac{1}{2}` and 50%,
//! `(x+1)^2` is `x^2 + 2x + 1`. Tuples, sets and intervals are compared part by part. What cannot be
//! read as an expression is compared as text.

use super::polynomial::Value;
use super::rational::Rational;

/// Longest answer that is read as an expression, in characters.
const LONGEST: usize = 500;
/// How deep parentheses may be in each other.
const DEEPEST: usize = 40;

/// Returns the part of a text that is its answer.
pub fn final_answer(text: &str) -> &str {
    if let Some(boxed) = last_boxed(text) {
        return boxed.trim();
    }
    if let Some((_, after)) = text.rsplit_once("####") {
        return after.trim().lines().next().unwrap_or_default().trim();
    }
    let lower = text.to_ascii_lowercase();
    for marker in ["answer is", "answer:"] {
        if let Some(place) = lower.rfind(marker) {
            let after = text[place + marker.len()..].trim_start_matches([':', ' ', '*']);
            let line = after.lines().next().unwrap_or_default().trim();
            if !line.is_empty() {
                return line.trim_end_matches(['.', '*']);
            }
        }
    }
    let line = text.trim().lines().next_back().unwrap_or_default();
    line.trim().trim_end_matches('.')
}

fn last_boxed(text: &str) -> Option<&str> {
    let starts = text
        .rmatch_indices("\\boxed{")
        .chain(text.rmatch_indices("\\fbox{"));
    let start = starts.map(|(place, name)| place + name.len()).max()?;
    let mut depth = 1_usize;
    for (place, letter) in text[start..].char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&text[start..start + place]);
        }
    }
    None
}

/// Returns whether two answers are the same.
pub(super) fn same(said: &str, expected: &str) -> bool {
    let (said, expected) = (cleaned(said), cleaned(expected));
    if said.is_empty() || expected.is_empty() {
        return false;
    }
    said == expected || equal(&said, &expected, 0).unwrap_or(false)
}

/// Returns whether the answer of a text is the expected one. If it says more than that, its last number counts.
pub fn grade(text: &str, expected: &str) -> bool {
    let answer = final_answer(text);
    same(answer, final_answer(expected)) || {
        let boxed = last_boxed(text).is_some();
        let number = (!boxed).then(|| last_number(answer)).flatten();
        number.is_some_and(|number| same(&number, final_answer(expected)))
    }
}

fn last_number(text: &str) -> Option<String> {
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '/' | '-' | '%');
    let words = text.split(|c: char| !is_part(c));
    let words = words.map(|word| word.trim_matches([',', '.', '/']).to_owned());
    let mut numbers: Vec<_> = words
        .filter(|word| word.contains(|c: char| c.is_ascii_digit()))
        .collect();
    numbers.pop()
}

/// Compares lists part by part, and all else as expressions.
fn equal(said: &str, expected: &str, depth: usize) -> Option<bool> {
    if depth > DEEPEST {
        return None;
    }
    if let (Some(said), Some(expected)) = (parts(said), parts(expected)) {
        if said.0 != expected.0 || said.1.len() != expected.1.len() {
            return Some(false);
        }
        let same = |(one, other): (&String, &String)| {
            one == other || equal(one, other, depth + 1).unwrap_or(false)
        };
        // The members of a set have no order.
        if said.0 == "{}" {
            let mut left = expected.1;
            return Some(said.1.iter().all(|one| {
                let found = left.iter().position(|other| same((one, other)));
                found.map(|found| left.remove(found)).is_some()
            }));
        }
        return Some(said.1.iter().zip(&expected.1).all(same));
    }
    let (said, expected) = (parse(said)?, parse(expected)?);
    said.equals(&expected)
}

/// Splits a list such as `(1, 2]` into what is around it and its parts.
fn parts(text: &str) -> Option<(String, Vec<String>)> {
    let (first, last) = (text.chars().next()?, text.chars().next_back()?);
    let around = matches!((first, last), ('(' | '[', ')' | ']') | ('{', '}'));
    let inner = if around {
        &text[1..text.len() - 1]
    } else {
        text
    };
    let (mut parts, mut depth, mut part) = (Vec::new(), 0_i32, String::new());
    for letter in inner.chars() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            return None;
        }
        if letter == ',' && depth == 0 {
            parts.push(std::mem::take(&mut part));
        } else {
            part.push(letter);
        }
    }
    parts.push(part);
    let around = if around {
        format!("{first}{last}")
    } else {
        String::new()
    };
    // One thing in parentheses is that thing; sets of one are sets.
    (parts.len() > 1 || around == "{}").then_some((around, parts))
}

/// Takes away what does not change an answer: dollar signs, spaces, `\left`, units, thousands separators.
fn cleaned(text: &str) -> String {
    let mut text = text.trim().trim_end_matches('.').to_owned();
    for (from, to) in [
        ("\\left", ""),
        ("\\right", ""),
        ("\\!", ""),
        ("\\,", ""),
        ("\\;", ""),
        ("\\ ", " "),
        ("\\%", "%"),
        ("\\$", ""),
        ("$", ""),
        ("\\dfrac", "\\frac"),
        ("\\tfrac", "\\frac"),
        ("\\cdot", "*"),
        ("\\times", "*"),
        ("\\div", "/"),
        ("×", "*"),
        ("·", "*"),
        ("÷", "/"),
        ("−", "-"),
        ("–", "-"),
        ("^\\circ", ""),
        ("^{\\circ}", ""),
        ("°", ""),
        ("\\{", "{"),
        ("\\}", "}"),
        ("\\pi", "π"),
        ("\\infty", "∞"),
        ("**", "^"),
        ("~", " "),
        ("€", ""),
        ("£", ""),
    ] {
        text = text.replace(from, to);
    }
    let text = without_texts(&text);
    // A name before an equals sign is what the answer is about: `x = 5`.
    let text = match text.split_once('=') {
        Some((name, value)) if name.trim().chars().count() <= 3 && !value.contains('=') => {
            value.to_owned()
        }
        _ => text,
    };
    let text = without_unit(text.trim());
    let is_group = |before: &[char], after: &[char]| {
        let digits = |part: &[char]| part.iter().take_while(|c| c.is_ascii_digit()).count();
        let before = before
            .iter()
            .rev()
            .take_while(|c| c.is_ascii_digit())
            .count();
        (1..=3).contains(&before) && digits(after) == 3
    };
    let letters: Vec<char> = text.chars().collect();
    let keep = |(place, letter): (usize, &char)| {
        let grouping = *letter == ',' && is_group(&letters[..place], &letters[place + 1..]);
        // `1,234` is a number; `(1,234)` may be two, but is taken for one only outside of a list.
        let in_list = letters
            .first()
            .is_some_and(|first| matches!(first, '(' | '[' | '{'));
        (!letter.is_whitespace() && (!grouping || in_list)).then_some(*letter)
    };
    letters.iter().enumerate().filter_map(keep).collect()
}

/// Keeps the content of `\text{}` only if it is all there is.
fn without_texts(text: &str) -> String {
    let mut rest = text.to_owned();
    for name in ["\\text{", "\\mathrm{", "\\textbf{", "\\mbox{"] {
        while let Some(start) = rest.find(name) {
            let Some(length) = rest[start..].find('}') else {
                break;
            };
            let inner = rest[start + name.len()..start + length].to_owned();
            let around = format!("{}{}", &rest[..start], &rest[start + length + 1..]);
            rest = if around.trim().is_empty() {
                inner
            } else {
                around
            };
        }
    }
    rest
}

/// Takes away words behind a number: `5 apples`, `12 cm^2`.
fn without_unit(text: &str) -> String {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ',' | '-' | '/' | '+' | ' ')));
    let Some(end) = end else {
        return text.to_owned();
    };
    let (number, unit) = text.split_at(end);
    let word = unit.chars().take_while(|c| c.is_alphabetic()).count();
    let plain = unit
        .chars()
        .all(|c| c.is_alphanumeric() || matches!(c, ' ' | '^' | '/' | '.' | '{' | '}'));
    let has_number = number.contains(|c: char| c.is_ascii_digit())
        && !number.trim_end().ends_with(['+', '-', '/']);
    // One letter is a variable, unless a space stands before it.
    if has_number
        && plain
        && word > 0
        && (word > 1 || number.ends_with(' '))
        && !unit.starts_with("sqrt")
    {
        return number.trim().to_owned();
    }
    text.to_owned()
}

fn parse(text: &str) -> Option<Value> {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() > LONGEST {
        return None;
    }
    let mut parser = Parser {
        letters,
        place: 0,
        depth: 0,
    };
    let value = parser.sum()?;
    (parser.place == parser.letters.len()).then_some(value)
}

struct Parser {
    letters: Vec<char>,
    place: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<char> {
        self.letters.get(self.place).copied()
    }

    fn take(&mut self, letter: char) -> bool {
        let found = self.peek() == Some(letter);
        self.place += usize::from(found);
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = word.chars().enumerate();
        let found = found
            .into_iter()
            .all(|(at, c)| self.letters.get(self.place + at) == Some(&c));
        self.place += if found { word.chars().count() } else { 0 };
        found
    }

    fn sum(&mut self) -> Option<Value> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let mut sum = self.product()?;
        loop {
            if self.take('+') {
                sum = sum.plus(&self.product()?)?;
            } else if self.take('-') {
                sum = sum.plus(&self.product()?.negated()?)?;
            } else {
                self.depth -= 1;
                return Some(sum);
            }
        }
    }

    fn product(&mut self) -> Option<Value> {
        let mut product = self.signed()?;
        loop {
            if self.take('*') {
                product = product.times(&self.signed()?)?;
            } else if self.take('/') {
                product = product.over(&self.signed()?)?;
            } else if self.begins_factor() {
                let mixed = self.is_mixed();
                let factor = self.power()?;
                // `1\frac{1}{2}` is a mixed number.
                product = if mixed {
                    product.plus(&factor)?
                } else {
                    product.times(&factor)?
                };
            } else {
                return Some(product);
            }
        }
    }

    fn is_mixed(&self) -> bool {
        let after_digit = self.place > 0 && self.letters[self.place - 1].is_ascii_digit();
        let fraction: String = self.letters[self.place..].iter().take(5).collect();
        let inner: String = self.letters[self.place..].iter().skip(6).take(1).collect();
        after_digit && fraction == "\\frac" && inner.chars().all(|c| c.is_ascii_digit())
    }

    fn begins_factor(&self) -> bool {
        self.peek()
            .is_some_and(|c| c.is_alphanumeric() || matches!(c, '(' | '\\' | '√' | '{'))
    }

    fn signed(&mut self) -> Option<Value> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let value = if self.take('-') {
            self.signed()?.negated()
        } else if self.take('+') {
            self.signed()
        } else {
            self.power()
        };
        self.depth -= 1;
        value
    }

    fn power(&mut self) -> Option<Value> {
        let mut base = self.atom()?;
        if self.take('^') {
            let exponent = if self.take('{') {
                self.closed('}')?
            } else {
                self.signed()?
            };
            base = base.power(&exponent)?;
        }
        if self.take('%') {
            base = base.times(&Value::number(Rational::new(1, 100)?))?;
        }
        Some(base)
    }

    fn closed(&mut self, end: char) -> Option<Value> {
        let value = self.sum()?;
        self.take(end).then_some(value)
    }

    /// Reads what a command applies to: `{…}`, `(…)`, or one letter.
    fn argument(&mut self) -> Option<Value> {
        if self.take('{') {
            return self.closed('}');
        }
        if self.take('(') {
            return self.closed(')');
        }
        let letter = self.peek()?;
        self.place += 1;
        match letter.to_digit(10) {
            Some(digit) => Some(Value::number(Rational::whole(digit.into()))),
            None => letter
                .is_alphabetic()
                .then(|| Value::variable(&letter.to_string())),
        }
    }

    fn atom(&mut self) -> Option<Value> {
        if self.take('(') {
            return self.closed(')');
        }
        if self.take('{') {
            return self.closed('}');
        }
        if self.take_word("\\frac") {
            let above = self.argument()?;
            return above.over(&self.argument()?);
        }
        if self.take_word("\\sqrt") || self.take_word("sqrt") || self.take('√') {
            let inner = if self.peek().is_some_and(|c| c.is_ascii_digit()) {
                self.number()?
            } else {
                self.argument()?
            };
            return inner.root();
        }
        let letter = self.peek()?;
        if letter.is_ascii_digit() || letter == '.' {
            return self.number();
        }
        if self.take_word("pi") {
            return Some(Value::variable("π"));
        }
        if letter.is_alphabetic() {
            self.place += 1;
            return Some(Value::variable(&letter.to_string()));
        }
        None
    }

    fn number(&mut self) -> Option<Value> {
        let start = self.place;
        while self.peek().is_some_and(|c| c.is_ascii_digit() || c == '.') {
            self.place += 1;
        }
        let digits: String = self.letters[start..self.place].iter().collect();
        Rational::decimal(&digits).map(Value::number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_equal_is_the_same_and_nothing_else() {
        let cases = [
            ("0.5", "\\frac{1}{2}", true),
            ("50\\%", "1/2", true),
            ("\\frac12", "0.50", true),
            ("1,234", "1234", true),
            ("$1,234.50", "1234.5", true),
            ("12 cm", "12", true),
            ("5 apples", "5", true),
            ("12\\text{ cm}^2", "12", false), // The exponent would be the answer's.
            ("90^\\circ", "90", true),
            ("x = 5", "5", true),
            ("x^2+2x+1", "(x+1)^2", true),
            ("(x+1)(x-1)", "x^2-1", true),
            ("\\frac{x^2-1}{x-1}", "x+1", true),
            ("x+1", "x+2", false),
            ("2\\sqrt{3}", "\\sqrt{12}", true),
            ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}", true),
            ("\\sqrt{-4}", "2i", true),
            ("3\\pi/2", "1.5\\pi", true),
            ("2^{10}", "1024", true),
            ("2^{-1}", "0.5", true),
            ("4^{1/2}", "2", true),
            ("1\\frac{1}{2}", "3/2", true),
            ("(1, 2)", "(1,2.0)", true),
            ("(1,2)", "(2,1)", false),
            ("[0,1)", "[0,1]", false),
            ("\\{1,2\\}", "\\{2,1\\}", true),
            ("\\text{Evelyn}", "Evelyn", true),
            ("(B)", "B", true),
            ("-3", "3", false),
            ("0.333", "1/3", false),
            ("1/0", "1/0", true), // The same text.
            ("1/0", "2/0", false),
            ("", "", false),
            ("9^{9^{9^9}}", "1", false),
        ];
        for (said, expected, right) in cases {
            assert_eq!(same(said, expected), right, "{said} and {expected}");
        }
    }

    #[test]
    fn the_answer_is_found_where_models_write_it() {
        let cases = [
            ("So \\boxed{\\frac{1}{2}} it is, not 3.", "0.5"),
            ("first \\boxed{1}, then \\boxed{2}", "2"),
            ("6 * 7 = 42\n#### 42", "42"),
            ("The answer is: **7**.", "7"),
            ("It costs $18 in all.", "18"),
            ("12", "#### 12"),
        ];
        for (text, expected) in cases {
            assert!(grade(text, expected), "{text}");
        }
        assert!(!grade("\\boxed{about 12}", "13"));
        assert!(!grade("", "0"));
    }

    #[test]
    fn no_answer_takes_long_or_panics() {
        let deep = "(".repeat(400);
        let long = "x+".repeat(240) + "x";
        let powers = "(a+b+c+d+e)^60";
        for text in [
            deep.as_str(),
            &long,
            powers,
            "-".repeat(490).as_str(),
            "√",
            "\\frac{",
            "{}",
            "()",
            "^",
            "%",
        ] {
            assert!(!same(text, "1"), "{text}");
        }
    }
}
