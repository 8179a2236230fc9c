//! Nodes to JSON, for metadata and for checking files against the schema.

use serde_json::{Map, Number, Value};

use super::{
    diagnostic::Place,
    scalar::Plain,
    yaml::{Kind, Node},
};

/// Keys that are no strings become their text. What JSON cannot say is refused, with its place.
pub fn of(node: &Node<'_>) -> Result<Value, (Place, String)> {
    match &node.kind {
        Kind::Scalar { text, .. } => scalar(node, text),
        Kind::Seq(items) => items.iter().map(of).collect::<Result<_, _>>().map(Value::Array),
        Kind::Map(_) => {
            let mut map = Map::new();
            for (key, value) in node.pairs() {
                let Some(name) = key.text() else {
                    return Err((key.place, "a key must be a single value".to_owned()));
                };
                map.insert(name.to_owned(), of(value)?);
            }
            Ok(Value::Object(map))
        }
    }
}

fn scalar(node: &Node<'_>, text: &str) -> Result<Value, (Place, String)> {
    Ok(match Plain::of(node) {
        Some(Plain::Null) => Value::Null,
        Some(Plain::Bool(value)) => value.into(),
        Some(Plain::Int(value)) => value.into(),
        Some(Plain::Big(value)) => value.into(),
        Some(Plain::Float(value)) => match Number::from_f64(value) {
            Some(number) => Value::Number(number),
            None => return Err((node.place, format!("'{text}' is not a finite number"))),
        },
        Some(Plain::Text) | None => text.into(),
    })
}
