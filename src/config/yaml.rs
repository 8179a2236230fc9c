//! Text to nodes, each with its place.
//!
//! Knows YAML: documents, anchors, merge keys, quoting. Knows nothing of rules. What a plain scalar means is for
//! [`super::scalar`] to say.
//!
//! Everything is bounded, because a file can be written to be large: its bytes, its depth, its nodes once every alias is
//! written out, and what merge keys add. Aliases share what they stand for, so that they cost a count and no memory.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    rc::Rc,
};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use super::diagnostic::{Finding, Place};

/// A hundred thousand rules fit three times.
pub const BYTES_MAX: usize = 32 << 20;
/// Rules thirty levels deep. Reading goes down by calls, and the stack has an end.
pub const DEPTH_MAX: usize = 64;
/// Once aliases are written out: fifteen for each of a hundred thousand rules, and no more than can be refused in a second.
pub const NODES_MAX: u64 = 1_500_000;
/// Unlike an alias, a merge key is written out.
pub const MERGED_MAX: usize = 500_000;

/// Maps with more keys than this look for duplicates with a hash table.
const SMALL_MAP: usize = 12;

#[derive(Clone, Debug)]
pub struct Node<'a> {
    pub kind: Kind<'a>,
    pub place: Place,
}

#[derive(Clone, Debug)]
pub enum Kind<'a> {
    Scalar {
        text: Cow<'a, str>,
        /// Written so that it can only be a string.
        quoted: bool,
    },
    Seq(Rc<[Node<'a>]>),
    /// Keys and values in turn. Keys are distinct, merge keys are merged.
    Map(Rc<[Node<'a>]>),
}

impl<'a> Node<'a> {
    /// The text of a scalar.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar { text, .. } => Some(text),
            Kind::Seq(_) | Kind::Map(_) => None,
        }
    }

    /// The pairs of a map; none for anything else.
    pub fn pairs(&self) -> impl Iterator<Item = (&Node<'a>, &Node<'a>)> {
        let items: &[Node<'a>] = if let Kind::Map(items) = &self.kind { items } else { &[] };
        items.chunks_exact(2).map(|pair| (&pair[0], &pair[1]))
    }

    /// The value of a key of a map.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node<'a>> {
        self.pairs().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value)
    }

    fn is_merge_key(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, quoted: false } if text == "<<")
    }
}

/// What a text holds: its documents, and what is wrong with it as YAML. After a syntax error, the documents before it.
#[derive(Debug, Default)]
pub struct Parsed<'a> {
    pub documents: Vec<Node<'a>>,
    pub mistakes: Vec<Finding>,
}

#[must_use]
pub fn parse(text: &str) -> Parsed<'_> {
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    let mut builder = Builder::default();
    let outcome = refuse_unreadable(text).and_then(|()| builder.read(text));
    let mut parsed = builder.parsed;
    parsed.mistakes.extend(outcome.err());
    parsed
}

fn refuse_unreadable(text: &str) -> Result<(), Finding> {
    if text.len() > BYTES_MAX {
        let message = format!("the file has {} bytes, at most {BYTES_MAX} (32 MiB) are read", text.len());
        return Err(Finding::error(Place::START, message).hint("split it into several files"));
    }
    // To the parser a NUL is the end of the text, and what follows would be lost without a word.
    if let Some(at) = text.find('\0') {
        let line = text[..at].matches('\n').count() + 1;
        let column = text[..at].chars().rev().take_while(|char| *char != '\n').count() + 1;
        return Err(Finding::error(place_of(line, column), "the file contains a NUL byte, which is not text"));
    }
    Ok(())
}

fn place_of(line: usize, column: usize) -> Place {
    Place { line: u32::try_from(line).unwrap_or(u32::MAX), column: u32::try_from(column).unwrap_or(u32::MAX) }
}

/// The parser counts lines from 1 and columns from 0.
fn place(marker: &Marker) -> Place {
    place_of(marker.line(), marker.col() + 1)
}

/// A collection that is not yet closed.
struct Open {
    is_map: bool,
    place: Place,
    anchor: usize,
    /// Where its items begin in [`Builder::items`].
    start: usize,
    /// How deep the deepest of its items is.
    height: usize,
    /// [`Builder::nodes`] before it.
    nodes: u64,
}

struct Anchor<'a> {
    node: Node<'a>,
    height: usize,
    /// How many nodes it stands for.
    nodes: u64,
}

#[derive(Default)]
struct Builder<'a> {
    parsed: Parsed<'a>,
    open: Vec<Open>,
    /// The items of all open collections, innermost last.
    items: Vec<Node<'a>>,
    anchors: HashMap<usize, Anchor<'a>>,
    /// Nodes so far, as if every alias were written out.
    nodes: u64,
    /// Pairs that merge keys have written out.
    merged: usize,
}

impl<'a> Builder<'a> {
    fn read(&mut self, text: &'a str) -> Result<(), Finding> {
        for event in Parser::new_from_str(text) {
            let (event, span) = event.map_err(|error| syntax_error(&error))?;
            self.take(event, place(&span.start))?;
        }
        Ok(())
    }

    fn take(&mut self, event: Event<'a>, place: Place) -> Result<(), Finding> {
        match event {
            Event::DocumentEnd => {
                self.anchors.clear();
                let root = self.items.pop();
                self.parsed.documents.extend(root.filter(|root| !is_empty(root)));
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1, place)?;
                let quoted = is_string(style, tag.as_deref(), place)?;
                self.put(Node { kind: Kind::Scalar { text, quoted }, place }, anchor, 1, 1);
            }
            Event::SequenceStart(anchor, tag) => self.begin(false, anchor, tag.as_deref(), place)?,
            Event::MappingStart(anchor, tag) => self.begin(true, anchor, tag.as_deref(), place)?,
            Event::SequenceEnd | Event::MappingEnd => self.end()?,
            Event::Alias(anchor) => self.follow(anchor, place)?,
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) => {}
        }
        Ok(())
    }

    fn count(&mut self, nodes: u64, place: Place) -> Result<(), Finding> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > NODES_MAX {
            let message = format!("the file has more than {NODES_MAX} values once its aliases are written out");
            return Err(Finding::error(place, message).hint("split it into several files, or use fewer aliases"));
        }
        Ok(())
    }

    fn begin(&mut self, is_map: bool, anchor: usize, tag: Option<&Tag>, place: Place) -> Result<(), Finding> {
        self.count(1, place)?;
        let expected = if is_map { "map" } else { "seq" };
        if let Some(tag) = tag.filter(|tag| !(tag.is_yaml_core_schema() && tag.suffix == expected)) {
            return Err(unknown_tag(tag, place));
        }
        refuse_depth(self.open.len() + 1, place)?;
        let (start, nodes) = (self.items.len(), self.nodes - 1);
        self.open.push(Open { is_map, place, anchor, start, height: 0, nodes });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Finding> {
        let Some(Open { is_map, place, anchor, start, height, nodes }) = self.open.pop() else { return Ok(()) };
        if is_map {
            self.merge(start, place)?;
            self.refuse_duplicates(start);
        }
        let items = self.items.drain(start..).collect();
        let kind = if is_map { Kind::Map(items) } else { Kind::Seq(items) };
        self.put(Node { kind, place }, anchor, height + 1, self.nodes - nodes);
        Ok(())
    }

    fn put(&mut self, node: Node<'a>, anchor: usize, height: usize, nodes: u64) {
        if let Some(open) = self.open.last_mut() {
            open.height = open.height.max(height);
        }
        if anchor > 0 {
            self.anchors.insert(anchor, Anchor { node: node.clone(), height, nodes });
        }
        self.items.push(node);
    }

    fn follow(&mut self, anchor: usize, place: Place) -> Result<(), Finding> {
        let Some(target) = self.anchors.get(&anchor) else {
            return Err(Finding::error(
                place,
                "this alias stands for no value that is complete before it in this document",
            ));
        };
        let (node, height, nodes) = (target.node.clone(), target.height, target.nodes);
        self.count(nodes, place)?;
        refuse_depth(self.open.len() + height, place)?;
        self.put(node, 0, height, nodes);
        Ok(())
    }

    /// Puts the pairs behind a `<<` beside the others. What is written out wins, then what is named first.
    fn merge(&mut self, start: usize, place: Place) -> Result<(), Finding> {
        let pairs = self.items.get(start..).unwrap_or_default();
        if !pairs.chunks_exact(2).any(|pair| pair[0].is_merge_key()) {
            return Ok(());
        }
        let mut explicit: Vec<Node<'a>> = Vec::with_capacity(pairs.len());
        let mut sources: Vec<Node<'a>> = Vec::new();
        let mut drained = self.items.drain(start..);
        while let (Some(key), Some(value)) = (drained.next(), drained.next()) {
            match (key.is_merge_key(), &value.kind) {
                (false, _) => explicit.extend([key, value]),
                (true, Kind::Map(_)) => sources.push(value),
                (true, Kind::Seq(maps)) if maps.iter().all(|map| matches!(map.kind, Kind::Map(_))) => {
                    sources.extend(maps.iter().cloned());
                }
                (true, _) => {
                    let message = "a merge key '<<' takes a map or a list of maps";
                    self.parsed.mistakes.push(Finding::error(value.place, message).hint("write `<<: *anchor`"));
                }
            }
        }
        drop(drained);
        let mut seen: HashSet<&str> = explicit.chunks_exact(2).filter_map(|pair| pair[0].text()).collect();
        let mut merged: Vec<Node<'a>> = Vec::new();
        for (key, value) in sources.iter().flat_map(Node::pairs) {
            if key.text().is_none_or(|text| seen.insert(text)) {
                merged.extend([key.clone(), value.clone()]);
            }
        }
        self.merged += merged.len() / 2;
        if self.merged > MERGED_MAX {
            let message = format!("merge keys write out more than {MERGED_MAX} pairs");
            return Err(Finding::error(place, message).hint("split the file, or merge smaller maps"));
        }
        self.items.extend(explicit);
        self.items.extend(merged);
        Ok(())
    }

    fn refuse_duplicates(&mut self, start: usize) {
        let pairs = self.items.get(start..).unwrap_or_default();
        let keys = || pairs.chunks_exact(2).map(|pair| &pair[0]).filter_map(|key| Some((key.text()?, key.place)));
        let mut duplicates = Vec::new();
        if pairs.len() <= 2 * SMALL_MAP {
            for (index, (text, place)) in keys().enumerate() {
                let first = keys().take(index).find(|(earlier, _)| *earlier == text);
                duplicates.extend(first.map(|(_, first)| duplicate_key(text, place, first)));
            }
        } else {
            let mut seen: HashMap<&str, Place> = HashMap::new();
            for (text, place) in keys() {
                let first = seen.insert(text, place);
                duplicates.extend(first.map(|first| duplicate_key(text, place, first)));
            }
        }
        self.parsed.mistakes.extend(duplicates);
    }
}

fn duplicate_key(text: &str, place: Place, first: Place) -> Finding {
    let message = format!("duplicate key '{text}', first written at {}:{}", first.line, first.column);
    Finding::error(place, message).hint("remove one of the two")
}

/// A document of nothing, as between two `---`, is no document.
fn is_empty(node: &Node<'_>) -> bool {
    matches!(&node.kind, Kind::Scalar { text, quoted: false } if text.is_empty() || text == "~" || text == "null")
}

fn refuse_depth(depth: usize, place: Place) -> Result<(), Finding> {
    if depth <= DEPTH_MAX {
        return Ok(());
    }
    Err(too_deep(place))
}

fn too_deep(place: Place) -> Finding {
    Finding::error(place, format!("values are nested deeper than {DEPTH_MAX} levels"))
}

/// A tag can make a string of what looks like a number, or the other way round.
fn is_string(style: ScalarStyle, tag: Option<&Tag>, place: Place) -> Result<bool, Finding> {
    let Some(tag) = tag else { return Ok(style != ScalarStyle::Plain) };
    match tag.suffix.as_str() {
        "str" if tag.is_yaml_core_schema() => Ok(true),
        "int" | "bool" | "float" | "null" if tag.is_yaml_core_schema() => Ok(false),
        _ => Err(unknown_tag(tag, place)),
    }
}

fn unknown_tag(tag: &Tag, place: Place) -> Finding {
    Finding::error(place, format!("the tag '{tag}' has no meaning here")).hint("remove it")
}

fn syntax_error(error: &ScanError) -> Finding {
    // The scanner looks ahead, and has a bound of its own, which is higher.
    if error.info() == "recursion limit exceeded" {
        return too_deep(place(error.marker()));
    }
    Finding::error(place(error.marker()), format!("error loading config file: {}", error.info()))
}

#[cfg(test)]
#[path = "yaml_tests.rs"]
mod tests;
