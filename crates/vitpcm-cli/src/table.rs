//! Plain text tables: the first column left-aligned, the others right-aligned.

use crate::printable;

/// Rows of cells under a heading, padded to the widest cell of each column.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with a heading and no rows.
    pub fn new(heading: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let heading = heading.into_iter().map(|cell| printable::cell(&cell.into()));
        Table { rows: vec![heading.collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| printable::cell(&cell)).collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let num_columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..num_columns).map(width).collect();
        for row in &self.rows {
            for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if i == 0 {
                    write!(f, "{cell:<width$}")?;
                } else {
                    write!(f, "  {cell:>width$}")?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// A percentage with two decimals, or a dash.
pub fn percent(value: Option<f64>) -> String {
    value.map_or("–".to_string(), |value| format!("{value:.2}"))
}

/// A count with digits in groups of three: 12 345 678.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["class", "IoU"]);
        table.row(["background".into(), "9.00".into()]);
        table.row(["véhicule".into(), "100.00".into()]);
        assert_eq!(table.to_string(), "class          IoU\nbackground    9.00\nvéhicule    100.00\n");
    }

    #[test]
    fn a_cell_of_a_million_letters_is_shortened() {
        let mut table = Table::new(["class", "IoU"]);
        table.row(["x".repeat(1_000_000), "9.00".into()]);
        assert!(table.to_string().lines().all(|line| line.chars().count() < 100));
    }

    #[test]
    fn digits_are_grouped_from_the_right() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(123_456), "123 456");
        assert_eq!(grouped(1_234_567), "1 234 567");
    }
}
