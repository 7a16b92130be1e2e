//! A table that is not yet written: for a terminal, as Markdown, or on a page.

use crate::jobs::analyze::readable;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Characters of a cell.
const WIDEST: usize = 120;

/// How a table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Terminal,
    Markdown,
}

/// A table, not yet written.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Lines {
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// So many columns are words, the others numbers.
    pub words: usize,
}

impl Lines {
    pub fn framed(self, form: Form) -> Table {
        let mut table = Table::new();
        table.load_style(if form == Form::Markdown { presets::ASCII_MARKDOWN } else { presets::UTF8_HORIZONTAL_ONLY });
        let cell = |text: String| match form {
            // What ends a cell there; and nothing that moves a terminal's cursor.
            Form::Markdown => readable(&text, WIDEST).replace('|', "\\|"),
            Form::Terminal => readable(&text, WIDEST),
        };
        let row = |row: Vec<String>| row.into_iter().map(cell).collect::<Vec<_>>();
        table.set_header(row(self.header)).add_rows(self.rows.into_iter().map(row));
        for column in table.column_iter_mut().skip(self.words) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a name that ends a cell, and one that moves the terminal's cursor.
    #[test]
    fn names_stay_in_their_cells() {
        let lines = Lines { header: vec!["a|b".to_owned()], rows: vec![vec!["\u{1b}[31mred\u{7}".to_owned()]], words: 1 };
        let markdown = lines.clone().framed(Form::Markdown).to_string();
        assert!(markdown.contains("a\\|b") && markdown.contains("\\u{1b}[31mred\\u{7}"), "{markdown}");
        let terminal = lines.framed(Form::Terminal).to_string();
        assert!(terminal.contains("a|b") && !terminal.contains('\u{1b}'), "{terminal:?}");
    }
}
