//! What the numbers of a row are, for detectors that sort out their boxes: `box`, `score` and `class` in the order of the export.

use std::fmt::{self, Display, Formatter};

/// The meaning of one column, or of four.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    /// The four numbers of the box.
    Box,
    Score,
    Class,
    /// The number of the picture in its batch.
    Image,
    /// A number that is ignored.
    Skip,
    /// All numbers that follow.
    Rest,
}

impl Column {
    const ALL: [(&str, Column); 6] = [
        ("box", Column::Box),
        ("score", Column::Score),
        ("class", Column::Class),
        ("image", Column::Image),
        ("skip", Column::Skip),
        ("rest", Column::Rest),
    ];

    fn named(name: &str) -> Option<Column> {
        Column::ALL.iter().find(|(known, _)| *known == name).map(|(_, column)| *column)
    }

    /// How many numbers it has, at least.
    fn width(&self) -> usize {
        match self {
            Column::Box => 4,
            Column::Rest => 0,
            Column::Score | Column::Class | Column::Image | Column::Skip => 1,
        }
    }
}

/// The numbers of a row that are used.
pub(super) struct Row {
    pub(super) numbers: [f32; 4],
    pub(super) score: f32,
    pub(super) class: f32,
    /// 0 if rows do not say it.
    pub(super) image: f32,
}

/// The order of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns(Vec<Column>);

/// The positions in a row of the numbers that are used.
pub(super) struct Places {
    r#box: usize,
    score: usize,
    class: usize,
    image: Option<usize>,
}

impl Columns {
    /// What a manifest may say.
    pub const ALLOWED: &str = "a list of \"box\", \"score\" and \"class\" in the order of a row, each of them once, with \"image\", \"skip\" \
                               and at the end \"rest\"";

    /// Whether this is the name of a column.
    pub fn is_one(word: &str) -> bool {
        Column::named(word).is_some()
    }

    /// The order that these words describe, if they are valid.
    pub fn of(words: &[impl AsRef<str>]) -> Option<Columns> {
        let columns: Option<Vec<Column>> = words.iter().map(|word| Column::named(word.as_ref())).collect();
        let columns = columns?;
        let count = |wanted| columns.iter().filter(|column| **column == wanted).count();
        let is_open = columns.last() == Some(&Column::Rest);
        let once = [Column::Box, Column::Score, Column::Class].into_iter().all(|column| count(column) == 1);
        (once && count(Column::Image) <= 1 && count(Column::Rest) == usize::from(is_open))
            .then_some(Columns(columns))
    }

    /// Whether a row says which picture it belongs to.
    pub(super) fn has_image(&self) -> bool {
        self.0.contains(&Column::Image)
    }

    /// Whether a row may have this many numbers.
    pub(super) fn takes(&self, numbers: usize) -> bool {
        numbers == self.numbers() || (self.is_open() && numbers > self.numbers())
    }

    /// The positions of the numbers that are used, in a row of a length that it [takes](Columns::takes).
    pub(super) fn places(&self) -> Places {
        let place = |wanted| {
            let before = self.0.iter().take_while(|column| **column != wanted);
            before.map(Column::width).sum()
        };
        Places {
            r#box: place(Column::Box),
            score: place(Column::Score),
            class: place(Column::Class),
            image: self.has_image().then(|| place(Column::Image)),
        }
    }

    /// Box, score and class, and further numbers behind them.
    pub(super) fn with_more() -> Columns {
        Columns(vec![Column::Box, Column::Score, Column::Class, Column::Rest])
    }

    /// The fewest numbers of a row.
    pub(super) fn numbers(&self) -> usize {
        self.0.iter().map(Column::width).sum()
    }

    /// Whether a row may have more of them.
    pub(super) fn is_open(&self) -> bool {
        self.0.last() == Some(&Column::Rest)
    }
}

impl Places {
    pub(super) fn read(&self, row: &[f32]) -> Row {
        Row {
            numbers: std::array::from_fn(|i| row[self.r#box + i]),
            score: row[self.score],
            class: row[self.class],
            image: self.image.map_or(0.0, |at| row[at]),
        }
    }
}

impl Default for Columns {
    /// Box, score and class, as in most exports.
    fn default() -> Columns {
        Columns(vec![Column::Box, Column::Score, Column::Class])
    }
}

impl Display for Columns {
    /// Writes how many numbers there are, and what they are.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name =
            |column: &Column| Column::ALL.iter().find(|(_, known)| known == column).map(|(name, _)| *name);
        let names: Vec<&str> = self.0.iter().filter_map(name).collect();
        let more = if self.is_open() { " or more" } else { "" };
        write!(f, "{}{more} numbers a row ({})", self.numbers(), names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_where_numbers_are_and_how_many_there_may_be() {
        let row: Vec<f32> = (0..8_u8).map(f32::from).collect();
        let read = |words: &[&str]| {
            let columns = Columns::of(words)?;
            let takes: Vec<usize> = (0..=9).filter(|numbers| columns.takes(*numbers)).collect();
            let Row { numbers, score, class, image } = columns.places().read(&row);
            Some((numbers, score, class, image, takes))
        };
        let default = read(&["box", "score", "class"]).unwrap();
        assert_eq!(default, ([0.0, 1.0, 2.0, 3.0], 4.0, 5.0, 0.0, vec![6]));
        assert_eq!(Columns::of(&["box", "score", "class"]), Some(Columns::default()));
        let yolo7 = read(&["image", "box", "class", "score"]).unwrap();
        assert_eq!(yolo7, ([1.0, 2.0, 3.0, 4.0], 6.0, 5.0, 0.0, vec![7]));
        let more = read(&["skip", "class", "score", "box", "image", "rest"]).unwrap();
        assert_eq!(more, ([3.0, 4.0, 5.0, 6.0], 2.0, 1.0, 7.0, vec![8, 9]));
        for wrong in [
            &["box", "score"][..],
            &["box", "score", "class", "class"],
            &["box", "score", "class", "image", "image"],
            &["box", "rest", "score", "class"],
            &["box", "score", "class", "rest", "rest"],
            &["box", "score", "label"],
            &[],
        ] {
            assert_eq!(Columns::of(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn an_order_is_told_as_it_was_said() {
        assert_eq!(Columns::default().to_string(), "6 numbers a row (box, score, class)");
        let open = Columns::of(&["image", "box", "score", "class", "rest"]).unwrap();
        assert_eq!(open.to_string(), "7 or more numbers a row (image, box, score, class, rest)");
    }
}
