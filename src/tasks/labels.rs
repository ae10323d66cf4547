//! The names of a model's classes, one per line of a text file.

use std::sync::Arc;

/// Class names by class index; empty for a model without a labels file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels(Vec<Arc<str>>);

impl Labels {
    /// One label per line. Surrounding blanks, a byte order mark and empty lines at the end are ignored. A text that holds nothing else has
    /// no labels.
    ///
    /// # Errors
    /// An empty line between labels, which would shift every later class.
    pub fn parse(text: &str) -> Result<Labels, String> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).trim_end();
        let mut labels = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let label = line.trim();
            if label.is_empty() {
                return Err(format!("line {} is empty: give every class a label, one per line", index + 1));
            }
            labels.push(Arc::from(label));
        }
        Ok(Labels(labels))
    }

    /// The given names, by class index.
    pub fn of(names: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Labels {
        Labels(names.into_iter().map(Into::into).collect())
    }

    /// The label of a class, if it has one.
    pub fn get(&self, index: usize) -> Option<Arc<str>> {
        self.0.get(index).cloned()
    }

    /// Number of labels.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no labels.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All labels, by class index.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter()
    }

    /// Refuses a labels file made for another number of classes.
    pub(super) fn fit(&self, output: &str, classes: usize) -> Result<(), String> {
        if self.is_empty() || self.len() == classes {
            return Ok(());
        }
        Err(format!("the labels file has {} labels, output {output:?} has {classes} classes", self.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_their_line_as_index() {
        let labels = Labels::parse("\u{feff}tench\r\n goldfish \nwhite shark\n\n").unwrap();
        assert_eq!(labels.len(), 3);
        assert_eq!(labels.get(1).as_deref(), Some("goldfish"));
        assert_eq!(labels.get(3), None);
    }

    #[test]
    fn an_empty_line_between_labels_is_an_error_with_its_number() {
        let error = Labels::parse("a\n\nb\n").unwrap_err();
        assert!(error.starts_with("line 2 is empty"), "{error}");
    }

    #[test]
    fn a_text_without_any_label_has_none() {
        for text in ["", "\n \n", "\u{feff}"] {
            assert_eq!(Labels::parse(text), Ok(Labels::default()), "{text:?}");
        }
    }
}
