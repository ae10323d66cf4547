//! Text tables.

use crate::words::printable;

/// Lines of cells, each column as wide as its widest cell. Names come from outside, so characters that would control a terminal are
/// escaped.
pub(super) fn table(lines: &[Vec<String>]) -> String {
    let escaped = |line: &Vec<String>| line.iter().map(|cell| printable(cell)).collect();
    let lines: Vec<Vec<String>> = lines.iter().map(escaped).collect();
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Bytes as MiB, with one decimal.
pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_no_line_ends_in_blanks() {
        let lines = [["A", "LONG"], ["äöü", ""]].map(|line| line.map(str::to_owned).to_vec());
        assert_eq!(table(&lines), "A    LONG\näöü\n");
    }

    #[test]
    fn names_end_no_line_and_drive_no_terminal() {
        let lines = [["a\nb", "1"], ["\u{1b}[2J\u{9b}", "2"]].map(|line| line.map(str::to_owned).to_vec());
        assert_eq!(table(&lines), "a\\nb             1\n\\u{1b}[2J\\u{9b}  2\n");
    }
}
