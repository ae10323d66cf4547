//! Reads TOML tables strictly. Every mistake is recorded with its line and key, and reading goes on, so that all
//! mistakes of a file are reported together.

use crate::words::meant;
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    ops::{Range, RangeInclusive},
    str::FromStr,
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The mistakes found in one file.
pub(super) struct Mistakes<'t> {
    text: &'t str,
    found: RefCell<Vec<(usize, String)>>,
    /// Keys that the reader asked for, each with its table: the allowed keys.
    asked: RefCell<Vec<(String, &'static str)>>,
    /// Keys that the reader did not ask for. Suggestions are made at the end, because such a key may belong to a table
    /// that is read later.
    unknown: RefCell<Vec<Unknown>>,
}

struct Unknown {
    span: Range<usize>,
    table: String,
    key: String,
}

/// The dotted name of a key in a table.
fn dotted(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
}

impl<'t> Mistakes<'t> {
    pub(super) fn new(text: &'t str) -> Mistakes<'t> {
        Mistakes { text, found: RefCell::default(), asked: RefCell::default(), unknown: RefCell::default() }
    }

    /// Records a mistake at a place in the text.
    pub(super) fn note(&self, span: &Range<usize>, message: impl Display) {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        self.found.borrow_mut().push((span.start, format!("line {line}: {message}")));
    }

    /// Records a parser error; a duplicate key by its name.
    pub(super) fn note_syntax(&self, error: &toml::de::Error) {
        let (span, message) = (error.span().unwrap_or_default(), error.message());
        match self.text.get(span.clone()).filter(|_| message == "duplicate key") {
            Some(key) => self.note(&span, format_args!("{message} {:?}", key.trim_matches(['"', '\'']))),
            None => self.note(&span, message),
        }
    }

    /// All mistakes, in the order of the file.
    pub(super) fn into_messages(self) -> Vec<String> {
        for unknown in self.unknown.take() {
            let Unknown { span, table, key } = &unknown;
            let meant = self.meant(table, key);
            self.note(span, format_args!("unknown key {:?}{meant}", dotted(table, key)));
        }
        let mut found = self.found.into_inner();
        found.sort();
        found.into_iter().map(|(_, message)| message).collect()
    }
}

impl Mistakes<'_> {
    /// What an unknown key may mean: the same key in the tables that have it, or a key of its own table with a similar
    /// name.
    fn meant(&self, table: &str, key: &str) -> String {
        let asked = self.asked.borrow();
        let places: BTreeSet<String> = asked
            .iter()
            .filter(|(_, other)| *other == key)
            .map(|(table, _)| match &table[..] {
                "" => "above all tables".to_owned(),
                table => format!("in [{table}]"),
            })
            .collect();
        match places.is_empty() {
            true => meant(key, asked.iter().filter(|(of, _)| of == table).map(|(_, key)| key)),
            false => format!("; it stands {}", places.into_iter().collect::<Vec<_>>().join(" or ")),
        }
    }
}

/// A table being read. The keys that the reader asks for are the allowed ones; [`Table::finish`] refuses the rest.
pub(super) struct Table<'a, 't> {
    /// Dotted, empty for the root.
    path: String,
    table: Option<&'a DeTable<'t>>,
    span: Range<usize>,
    mistakes: &'a Mistakes<'t>,
}

impl<'a, 't> Table<'a, 't> {
    pub(super) fn root(table: &'a Spanned<DeTable<'t>>, mistakes: &'a Mistakes<'t>) -> Self {
        Table { path: String::new(), table: Some(table.get_ref()), span: table.span(), mistakes }
    }

    /// Whether the file has this table.
    pub(super) fn is_given(&self) -> bool {
        self.table.is_some()
    }

    /// The dotted name of a key.
    fn name(&self, key: &str) -> String {
        dotted(&self.path, key)
    }

    fn entry(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'t>>> {
        self.mistakes.asked.borrow_mut().push((self.path.clone(), key));
        // The keys of this map carry their place in the file, so a lookup by text has to scan it. Tables are short.
        self.table?.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    /// Records a mistake about this table.
    pub(super) fn mistake(&self, message: impl Display) {
        self.mistakes.note(&self.span, message);
    }

    /// Records a mistake about the value of a key, at its line.
    pub(super) fn mistake_at(&self, key: &'static str, message: impl Display) {
        let span = self.entry(key).map_or_else(|| self.span.clone(), Spanned::span);
        self.mistakes.note(&span, format_args!("{} {message}", self.name(key)));
    }

    /// A table within this one; empty if it is not given.
    pub(super) fn table(&self, key: &'static str) -> Table<'a, 't> {
        let entry = self.entry(key);
        let table = entry.and_then(|value| match value.get_ref() {
            DeValue::Table(table) => Some(table),
            _ => {
                self.wrong(key, value, "a table");
                None
            }
        });
        Table {
            path: self.name(key),
            table,
            span: entry.map_or_else(|| self.span.clone(), Spanned::span),
            mistakes: self.mistakes,
        }
    }

    /// All tables within this one, whatever their names.
    pub(super) fn tables(&self) -> Vec<(String, Table<'a, 't>)> {
        let entries = self.table.into_iter().flat_map(|table| table.iter());
        let tables = entries.filter_map(|(name, value)| {
            let name = name.get_ref().to_string();
            let DeValue::Table(table) = value.get_ref() else {
                self.wrong(&name, value, "a table");
                return None;
            };
            let (path, span) = (self.name(&name), value.span());
            Some((name, Table { path, table: Some(table), span, mistakes: self.mistakes }))
        });
        tables.collect()
    }

    fn wrong(&self, key: &str, at: &Spanned<DeValue<'t>>, allowed: impl Display) {
        let got = show(at.get_ref());
        self.mistakes.note(&at.span(), format_args!("{} is {got}, allowed: {allowed}", self.name(key)));
    }

    /// Reads the value of a key with `read`; if that returns `None`, records a mistake that says what is allowed.
    fn read<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'t>) -> Option<T>,
        allowed: impl Display,
    ) -> Option<T> {
        let value = self.entry(key)?;
        let read = read(value.get_ref());
        if read.is_none() {
            self.wrong(key, value, allowed);
        }
        read
    }

    /// Text.
    pub(super) fn string(&self, key: &'static str) -> Option<String> {
        let read = |value: &DeValue<'t>| match value {
            DeValue::String(text) if !text.is_empty() => Some(text.to_string()),
            _ => None,
        };
        self.read(key, read, "text that is not empty")
    }

    /// A string, a number, or a list of these, as the text that a request would contain: lists are separated by commas.
    pub(super) fn text(&self, key: &'static str) -> Option<String> {
        fn text(value: &DeValue<'_>) -> Option<String> {
            match value {
                DeValue::String(text) => Some(text.to_string()),
                DeValue::Array(items) => {
                    let items: Option<Vec<String>> = items.iter().map(|item| text(item.get_ref())).collect();
                    items.map(|items| items.join(","))
                }
                other => number(other).map(|number| number.to_string()),
            }
        }
        self.read(key, text, "text, a finite number, or a list of such numbers")
    }

    /// One of several words, as the value that it stands for.
    pub(super) fn choice<T: Copy>(&self, key: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let value = self.entry(key)?;
        if let DeValue::String(text) = value.get_ref()
            && let Some((_, choice)) = choices.iter().find(|(word, _)| word == text)
        {
            return Some(*choice);
        }
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let meant = match value.get_ref() {
            DeValue::String(text) => meant(text, &words),
            _ => String::new(),
        };
        self.wrong(key, value, format_args!("{}{meant}", words.join(", ")));
        None
    }

    /// Whether a key has this text.
    pub(super) fn is(&self, key: &'static str, text: &str) -> bool {
        self.entry(key).is_some_and(|value| matches!(value.get_ref(), DeValue::String(got) if got == text))
    }

    /// A whole number in a range.
    pub(super) fn integer<T>(&self, key: &'static str, range: RangeInclusive<T>) -> Option<T>
    where
        T: FromStr + PartialOrd + Display,
    {
        let read = |value: &DeValue<'t>| integer(value).filter(|number| range.contains(number));
        self.read(key, read, format_args!("whole numbers from {} to {}", range.start(), range.end()))
    }

    /// A number in a range.
    pub(super) fn number(&self, key: &'static str, range: RangeInclusive<f64>) -> Option<f64> {
        let read = |value: &DeValue<'t>| number(value).filter(|number| range.contains(number));
        self.read(key, read, format_args!("{} to {}", range.start(), range.end()))
    }

    /// Numbers in a range, by names that the author chooses; true is 1, and false is 0.
    pub(super) fn numbers(
        &self,
        key: &'static str,
        range: RangeInclusive<f64>,
    ) -> Option<BTreeMap<String, f64>> {
        let in_range = |value: &DeValue<'_>| match value {
            DeValue::Boolean(flag) => Some(f64::from(u8::from(*flag))),
            value => number(value).filter(|number| range.contains(number)),
        };
        let read = |value: &DeValue<'t>| match value {
            DeValue::Table(table) => table
                .iter()
                .map(|(name, value)| Some((name.get_ref().to_string(), in_range(value.get_ref())?)))
                .collect(),
            _ => None,
        };
        let (from, to) = (range.start(), range.end());
        self.read(key, read, format_args!("names with numbers from {from} to {to}, true or false"))
    }

    /// `true` or `false`.
    pub(super) fn flag(&self, key: &'static str) -> Option<bool> {
        self.read(key, DeValue::as_bool, "true, false")
    }

    /// A word, `true` or `false`, as the value that it stands for.
    pub(super) fn word_or_flag<T>(
        &self,
        key: &'static str,
        (word, of_word): (&str, T),
        [no, yes]: [T; 2],
    ) -> Option<T> {
        let read = |value: &DeValue<'t>| match value {
            DeValue::Boolean(flag) => Some(if *flag { yes } else { no }),
            DeValue::String(text) if text == word => Some(of_word),
            _ => None,
        };
        self.read(key, read, format_args!("{word}, true, false"))
    }

    /// A word, or two different numbers in a range; the inner `None` stands for the word.
    pub(super) fn word_or_pair(
        &self,
        key: &'static str,
        word: &str,
        range: RangeInclusive<f64>,
    ) -> Option<Option<[f32; 2]>> {
        let fits = |[a, b]: &[f64; 2]| range.contains(a) && range.contains(b) && *a as f32 != *b as f32;
        let read = |value: &DeValue<'t>| match value {
            DeValue::String(text) if text == word => Some(None),
            DeValue::Array(items) => {
                let [a, b] = &items[..] else { return None };
                let pair = [number(a.get_ref())?, number(b.get_ref())?];
                fits(&pair).then(|| Some(pair.map(|n| n as f32)))
            }
            _ => None,
        };
        let (from, to) = (range.start(), range.end());
        self.read(key, read, format_args!("{word}, or two numbers that differ, from {from} to {to}"))
    }

    /// A number for all channels, or one for each, of so many (those of colours) or of whatever number.
    pub(super) fn channels(
        &self,
        key: &'static str,
        range: RangeInclusive<f64>,
        each: Option<usize>,
    ) -> Option<Vec<f32>> {
        let read = |value: &DeValue<'t>| {
            let numbers: Vec<f64> = match value {
                DeValue::Array(items) => {
                    items.iter().map(|item| number(item.get_ref())).collect::<Option<_>>()?
                }
                other => vec![number(other)?],
            };
            let count = numbers.len();
            let counts = count == 1 || each.map_or(count > 1, |each| count == each);
            let fits = counts && numbers.iter().all(|number| range.contains(number));
            fits.then(|| numbers.into_iter().map(|n| n as f32).collect())
        };
        let (from, to) = (range.start(), range.end());
        let each = each.map_or("one for each channel", |_| "three in the order of input.color");
        self.read(key, read, format_args!("one number, or {each}, from {from} to {to}"))
    }

    /// A list of whole numbers in a range.
    pub(super) fn integers(&self, key: &'static str, range: RangeInclusive<usize>) -> Option<Vec<usize>> {
        let read = |value: &DeValue<'t>| {
            let numbers: Option<Vec<usize>> = match value {
                DeValue::Array(items) => items.iter().map(|item| integer(item.get_ref())).collect(),
                _ => None,
            };
            numbers.filter(|n| !n.is_empty() && n.iter().all(|n| range.contains(n)))
        };
        self.read(
            key,
            read,
            format_args!("a list of whole numbers from {} to {}", range.start(), range.end()),
        )
    }

    /// A word, or a list of words, each of which `fits`.
    pub(super) fn words(
        &self,
        key: &'static str,
        allowed: &str,
        fits: impl Fn(&str) -> bool,
    ) -> Option<Vec<String>> {
        let word = |value: &DeValue<'t>| match value {
            DeValue::String(text) if fits(text) => Some(text.to_string()),
            _ => None,
        };
        let read = |value: &DeValue<'t>| {
            let words: Option<Vec<String>> = match value {
                DeValue::Array(items) => items.iter().map(|item| word(item.get_ref())).collect(),
                other => word(other).map(|word| vec![word]),
            };
            words.filter(|words| !words.is_empty())
        };
        self.read(key, read, allowed)
    }

    /// A count, or a list of names: the count, and the names.
    pub(super) fn count_or_names(
        &self,
        key: &'static str,
        range: RangeInclusive<usize>,
    ) -> Option<(usize, Vec<String>)> {
        let name = |value: &Spanned<DeValue<'t>>| match value.get_ref() {
            DeValue::String(text) if !text.trim().is_empty() => Some(text.to_string()),
            _ => None,
        };
        let read = |value: &DeValue<'t>| {
            let told = match value {
                DeValue::Array(items) => {
                    items.iter().map(name).collect::<Option<Vec<_>>>().map(|names| (names.len(), names))
                }
                other => integer(other).map(|count| (count, Vec::new())),
            };
            told.filter(|(count, _)| range.contains(count))
        };
        let (from, to) = (range.start(), range.end());
        self.read(key, read, format_args!("a whole number from {from} to {to}, or a list of as many names"))
    }

    /// Records every key that the reader did not ask for.
    pub(super) fn finish(&self) {
        let asked = self.mistakes.asked.borrow();
        for key in self.table.into_iter().flat_map(|table| table.keys()) {
            let known = asked.iter().any(|(table, asked)| *table == self.path && *asked == key.get_ref());
            if !known {
                let (span, table, key) = (key.span(), self.path.clone(), key.get_ref().to_string());
                self.mistakes.unknown.borrow_mut().push(Unknown { span, table, key });
            }
        }
    }
}

fn integer<T: FromStr>(value: &DeValue<'_>) -> Option<T> {
    match value {
        // The parser has removed underscores and the prefix of the radix.
        DeValue::Integer(integer) => {
            let number = i128::from_str_radix(integer.as_str(), integer.radix()).ok()?;
            number.to_string().parse().ok()
        }
        _ => None,
    }
}

fn number(value: &DeValue<'_>) -> Option<f64> {
    let number: f64 = match value {
        DeValue::Integer(whole) if whole.radix() != 10 => integer::<i64>(value)? as f64,
        DeValue::Integer(integer) => integer.as_str().parse().ok()?,
        DeValue::Float(float) => float.as_str().parse().ok()?,
        _ => return None,
    };
    number.is_finite().then_some(number)
}

/// A value to quote in messages, shortened if it is long.
fn show(value: &DeValue<'_>) -> String {
    let text = match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(integer) => integer.to_string(),
        DeValue::Float(float) => float.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(date) => date.to_string(),
        DeValue::Table(_) => "a table".to_owned(),
        DeValue::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| show(item.get_ref())).collect();
            format!("[{}]", items.join(", "))
        }
    };
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
