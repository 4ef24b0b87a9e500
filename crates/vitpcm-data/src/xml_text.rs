//! Resolves XML references such as `&amp;`, for all XML readers.

use quick_xml::events::BytesRef;

/// The character that a reference stands for; undefined references are kept as written.
pub(crate) fn text_of_reference(reference: &BytesRef<'_>) -> String {
    if let Ok(Some(character)) = reference.resolve_char_ref() {
        return character.to_string();
    }
    let name = reference.xml10_content();
    quick_xml::escape::resolve_predefined_entity(&name).map_or_else(|| format!("&{name};"), str::to_string)
}
