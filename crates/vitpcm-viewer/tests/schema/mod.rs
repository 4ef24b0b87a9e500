//! JSON against a JSON schema, for the keywords that the OpenAPI document uses; any other is a panic, not passed over.

use serde_json::Value;

/// What a value breaks of a schema, if anything. References lead into `document`.
pub(crate) fn violation(value: &Value, schema: &Value, document: &Value) -> Option<String> {
    let schema = resolved(schema, document);
    schema.as_object().unwrap().iter().find_map(|(keyword, rule)| {
        let is_kept = match keyword.as_str() {
            "description" | "default" | "format" => true,
            "type" => is_of_type(value, rule),
            "enum" => rule.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()),
            "minLength" => value.as_str().is_none_or(|text| text.chars().count() >= size(rule)),
            "maxLength" => value.as_str().is_none_or(|text| text.chars().count() <= size(rule)),
            "minItems" => value.as_array().is_none_or(|items| items.len() >= size(rule)),
            "maxItems" => value.as_array().is_none_or(|items| items.len() <= size(rule)),
            "required" => {
                rule.as_array().unwrap().iter().all(|key| value.get(key.as_str().unwrap()).is_some())
            }
            "additionalProperties" => {
                assert_eq!(rule, false);
                let known = &schema["properties"];
                value.as_object().is_none_or(|members| members.keys().all(|key| known.get(key).is_some()))
            }
            "oneOf" => {
                let kept =
                    rule.as_array().unwrap().iter().filter(|one| violation(value, one, document).is_none());
                kept.count() == 1
            }
            "items" => return value.as_array()?.iter().find_map(|item| violation(item, rule, document)),
            "properties" => {
                let members =
                    value.as_object()?.iter().filter_map(|(key, member)| Some((member, rule.get(key)?)));
                return members.into_iter().find_map(|(member, rule)| violation(member, rule, document));
            }
            other => panic!("the validator does not know `{other}`"),
        };
        (!is_kept).then(|| format!("{value} breaks {keyword}: {rule}"))
    })
}

/// What a value refers to, or itself.
pub(crate) fn resolved<'a>(value: &'a Value, document: &'a Value) -> &'a Value {
    match value.get("$ref") {
        Some(reference) => document.pointer(reference.as_str().unwrap().trim_start_matches('#')).unwrap(),
        None => value,
    }
}

fn size(rule: &Value) -> usize {
    rule.as_u64().unwrap() as usize
}

fn is_of_type(value: &Value, rule: &Value) -> bool {
    match rule.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("null") => value.is_null(),
        Some(other) => panic!("no type of JSON: `{other}`"),
        None => rule.as_array().unwrap().iter().any(|one| is_of_type(value, one)),
    }
}
