//! Numbers and lists as parts of a sentence, for messages about a data set.

/// Items named in a sentence.
const NAMED: usize = 8;

/// The first few, separated by commas, and the number of the rest.
pub(crate) fn listed<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    listed_with(items, text, ", ")
}

/// The first few with this separator, and the number of the rest.
pub(crate) fn listed_with<T>(items: &[T], text: impl Fn(&T) -> String, separator: &str) -> String {
    let named: Vec<String> = items.iter().take(NAMED).map(text).collect();
    let more = items.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    named.join(separator) + &more
}

/// A name between backquotes.
pub(crate) fn quoted(name: &str) -> String {
    format!("`{name}`")
}

/// A count with its noun.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
