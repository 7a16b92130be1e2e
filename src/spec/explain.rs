//! What serde says of a wrong specification, in words that name the key, its value and what would be right.

use crate::error::Error;
use toml::de::Error as Wrong;
use toml::{Table, Value};

/// Below this (Jaro's similarity) another word is not what was meant.
const ALIKE: f64 = 0.7;

/// A value on one line of bounded length.
pub(super) fn short(value: &Value) -> String {
    let text = value.to_string().replace('\n', " ");
    if text.chars().count() > 60 { text.chars().take(57).chain("...".chars()).collect() } else { text }
}

/// A key that does not exist, with those that do; the nearest first.
pub(super) fn no_such_key(prefix: &str, key: &str, value: &Value, names: &[&str]) -> Error {
    let hint = nearest(key, names).map_or_else(String::new, |name| format!("did you mean {prefix}{name}? "));
    let reason = format!("no such key; {hint}allowed: {}", names.join(", "));
    Error::config(format!("{prefix}{key}"), short(value), reason)
}

/// What goes by a name in other tools, in keys of this one.
fn elsewhere(word: &str) -> Option<&'static str> {
    match word.to_lowercase().replace('-', "_").as_str() {
        "grpo" => Some("estimate.advantage = \"group_normalised\" with learn.loss = { ppo = {} }"),
        "dr_grpo" => Some("estimate.advantage = \"group_mean\" with learn.loss = { ppo = {} }"),
        "rloo" => Some("estimate.advantage = \"leave_one_out\" with learn.loss = { reinforce = {} }"),
        "dapo" => Some("estimate.zero_variance = \"discard\" with learn.loss = { ppo = {} }"),
        "tis" => Some("learn.loss = { reinforce = {} }"),
        _ => None,
    }
}

fn nearest<'a>(word: &str, names: &[&'a str]) -> Option<&'a str> {
    let alike = names.iter().map(|name| (*name, strsim::jaro(name, word)));
    let nearest = alike.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, alike)| *alike >= ALIKE);
    nearest.map(|(name, _)| name)
}

/// toml's message ends with "in `key`"; the value stands in the table. Where it is about a word that is not one of the allowed,
/// the nearest is named. `retry` says what is wrong with another table.
pub(super) fn explain(error: &Wrong, table: &Table, retry: impl Fn(Table) -> Option<Wrong>) -> Error {
    let key = key_of(error);
    match wrong_type(error.message()) {
        // The words that are allowed are told where a word was found.
        Some((found, expected @ ("string only" | "variant identifier"))) => {
            let retried = retry(worded(table, &key)).filter(|error| key_of(error) == key);
            let named = retried.filter(|error| error.message().starts_with("unknown variant"));
            match named {
                Some(error) => of_names(error.message(), table, key),
                None => of_type(table, key, found, expected),
            }
        }
        // An enum's name alone, where keys belong to it.
        Some(("unit variant", "struct variant" | "newtype variant")) => {
            let name = lookup(table, &key).and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default();
            let right =
                format!("{name} has keys: write {{ {name} = {{}} }}, and in it those that are not to have their defaults");
            Error::config(key, format!("{name:?}"), right)
        }
        Some((found, expected)) => of_type(table, key, found, expected),
        None => of_names(error.message(), table, key),
    }
}

fn key_of(error: &Wrong) -> String {
    let text = error.to_string();
    text.rsplit_once("in `").and_then(|(_, rest)| rest.split('`').next()).unwrap_or_default().to_owned()
}

/// About a name that does not exist, or one that is missing.
fn of_names(message: &str, table: &Table, key: String) -> Error {
    let (key, found) = found(table, key);
    let message = message.trim();
    let (what, allowed) = message.split_once(", expected").unwrap_or((message, ""));
    let words = |text| quoted(text).collect::<Vec<_>>();
    match (what.split('`').next().map(str::trim), words(what).as_slice(), found) {
        (Some("unknown field"), [field], Some(found)) => {
            let (place, value) = place_of(field, &found, &key).unwrap_or((key, found));
            let prefix = if place.is_empty() { String::new() } else { format!("{place}.") };
            no_such_key(&prefix, field, &value, &words(allowed))
        }
        (Some("unknown variant"), [variant], found) => {
            let names = words(allowed);
            let near = || nearest(variant, &names).map(|name| format!("did you mean `{name}`? "));
            let hint = elsewhere(variant).map(|here| format!("it is {here} here; ")).or_else(near).unwrap_or_default();
            let value = found.map_or_else(|| "?".into(), |value| short(&value));
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            Error::config(key, value, format!("`{variant}` is not allowed; {hint}allowed: {}", names.join(", ")))
        }
        (Some("missing field"), [field], _) => {
            let key = if key.is_empty() { (*field).to_owned() } else { format!("{key}.{field}") };
            Error::config(key, "absent", "it has no default and must be given")
        }
        (_, _, found) => {
            let key = if key.is_empty() { "spec".to_owned() } else { key };
            Error::config(key, found.map_or_else(|| "?".into(), |value| short(&value)), of_shape(message))
        }
    }
}

/// About a table whose shape is wrong: where a name and its keys are expected, there is one name.
fn of_shape(message: &str) -> String {
    match message {
        none if none.ends_with("found 0 elements") => {
            "no name in it: give one with its keys, as in { NAME = {} }".to_owned()
        }
        several if several.starts_with("wanted exactly 1 element") => {
            "more than one name in it: give one with its keys, as in { NAME = {} }".to_owned()
        }
        other => match other.strip_prefix("expected table, found ") {
            Some(found) => format!("{found} in it, expected a name alone, or a name with a table of its keys"),
            None => other.replace('\n', " "),
        },
    }
}

/// The value of `key`, or of that name further down: toml's paths leave out the names of an enum's variants.
fn found(table: &Table, key: String) -> (String, Option<Value>) {
    if key.is_empty() {
        return (key, Some(Value::Table(table.clone())));
    }
    let below = |(path, name)| {
        let (place, value) = place_of(name, &lookup(table, path)?, path)?;
        Some((format!("{place}.{name}"), value))
    };
    match (lookup(table, &key), key.rsplit_once('.').and_then(below)) {
        (None, Some((full, value))) => (full, Some(value)),
        (found, _) => (key, found),
    }
}

/// What serde found, and what it expected, where it says so of a value.
fn wrong_type(message: &str) -> Option<(&str, &str)> {
    let message = message.trim();
    let rest = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "))?;
    rest.rsplit_once(", expected ")
}

/// About a value of another type than `expected`, at `key` or in what is there: serde does not always know where.
fn of_type(table: &Table, key: String, found: &str, expected: &str) -> Error {
    let (names, mut places) = (key.split('.').collect::<Vec<_>>(), Vec::new());
    let mut open = vec![(String::new(), Vec::new(), Value::Table(table.clone()))];
    while let Some((path, at, value)) = open.pop() {
        if described(&value).as_deref() == Some(found) && lies_in(&at, &names) {
            places.push((path.clone(), at.clone(), short(&value)));
        }
        match value {
            Value::Table(table) => open.extend(table.into_iter().map(|(name, value)| {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                (path, at.iter().cloned().chain([name]).collect(), value)
            })),
            // The first is the last in, and so the next out.
            Value::Array(list) => {
                open.extend(
                    list.into_iter().enumerate().rev().map(|(i, value)| (format!("{path}[{i}]"), at.clone(), value)),
                );
            }
            _ => {}
        }
    }
    let right = right(expected);
    // Of several elements of a list serde stops at the first.
    let same = places.windows(2).all(|pair| pair[0].1 == pair[1].1);
    match places.into_iter().next().filter(|_| same) {
        Some((path, _, value)) => Error::config(path, value, format!("expected {right}")),
        None => {
            let value = lookup(table, &key).map_or_else(|| "?".into(), |value| short(&value));
            Error::config(key, value, format!("{found} in it, expected {right}"))
        }
    }
}

/// Whether the names of a place begin as those of a key, from which serde may have left some out, or all behind it.
fn lies_in(place: &[String], key: &[&str]) -> bool {
    let mut place = place.iter();
    place.as_slice().first().map(String::as_str) == key.first().copied() && key.iter().all(|name| place.any(|at| at == name))
}

/// A value as serde speaks of it.
fn described(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(format!("string {text:?}")),
        Value::Integer(number) => Some(format!("integer `{number}`")),
        Value::Float(number) => Some(format!("floating point `{number:?}`")),
        Value::Boolean(truth) => Some(format!("boolean `{truth}`")),
        Value::Array(_) => Some("sequence".to_owned()),
        Value::Table(_) => Some("map".to_owned()),
        Value::Datetime(_) => None,
    }
}

/// What serde expected, for those who do not write Rust.
fn right(expected: &str) -> &str {
    match expected {
        "usize" | "u64" => "a whole number, 0 or more",
        "u32" => "a whole number from 0 to 4294967295",
        "u16" => "a whole number from 0 to 65535",
        "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "string only" | "variant identifier" => "text",
        "path string" => "a path, as text",
        "a sequence" => "a list",
        "a map" => "a table of keys",
        other if other.starts_with("struct ") || other.starts_with("internally tagged enum ") => "a table of keys",
        other => other,
    }
}

/// The table with words for the values at `key` that are none.
fn worded(table: &Table, key: &str) -> Table {
    fn word(value: &mut Value, names: &[&str]) {
        match (value, names) {
            (Value::Array(list), names) => list.iter_mut().for_each(|value| word(value, names)),
            (Value::Table(table), [name, rest @ ..]) => table.get_mut(*name).into_iter().for_each(|value| word(value, rest)),
            (Value::String(_), _) | (_, [_, ..]) => {}
            (value, []) => *value = Value::String(value.to_string()),
        }
    }
    let mut table = table.clone();
    if let Some((first, rest)) = key.split('.').collect::<Vec<_>>().split_first() {
        table.get_mut(*first).into_iter().for_each(|value| word(value, rest));
    }
    table
}

/// The words in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Where below `at`, whose key is `path`, the first table with `key` is, and the key's value.
fn place_of(key: &str, at: &Value, path: &str) -> Option<(String, Value)> {
    match at {
        Value::Table(table) => table.get(key).map(|value| (path.to_owned(), value.clone())).or_else(|| {
            let below = |name: &String| if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            table.iter().find_map(|(name, value)| place_of(key, value, &below(name)))
        }),
        Value::Array(list) => list.iter().enumerate().find_map(|(i, value)| place_of(key, value, &format!("{path}[{i}]"))),
        _ => None,
    }
}

/// The value of a key; of a key of a list of tables (`task.kind`), the values of all.
fn lookup(table: &Table, key: &str) -> Option<Value> {
    key.split('.').try_fold(Value::Table(table.clone()), |at, part| match at {
        Value::Array(tables) => Some(Value::Array(tables.iter().filter_map(|table| table.get(part).cloned()).collect())),
        at => at.get(part).cloned(),
    })
}

#[cfg(test)]
mod tests {
    use crate::spec::Spec;

    /// Catches Rust's names of types in what a user reads, and a value whose place is not named.
    #[test]
    fn a_value_of_another_type_is_told_by_its_place_and_the_type_in_words() {
        for (set, message) in [
            ("generate.slots=-1", "generate.slots = -1: expected a whole number, 0 or more"),
            ("generate.slots=1.5", "generate.slots = 1.5: expected a whole number, 0 or more"),
            ("seed=x", "seed = \"x\": expected a whole number, 0 or more"),
            ("workers.learner_threads=70000", "workers.learner_threads = 70000: expected a whole number from 0 to 65535"),
            ("workers.generators=0", "workers.generators = 0: expected a list"),
            ("workers.generators=[0,-1,-1]", "workers.generators[1] = -1: expected a whole number, 0 or more"),
            ("learn.lr=fast", "learn.lr = \"fast\": expected a number"),
            ("learn.warmup_steps=true", "learn.warmup_steps = true: expected a whole number, 0 or more"),
            ("generate.mask_truncated=yes", "generate.mask_truncated = \"yes\": expected true or false"),
            ("generate.stop=[1]", "generate.stop[0] = 1: expected text"),
            ("output=3", "output = 3: expected a path, as text"),
            ("task=3", "task = 3: expected a list"),
            ("task=[{kind='sorting'},{kind='sorting',weight='x'}]", "task[1].weight = \"x\": expected a number"),
            ("learn.loss={ppo={clip_low='x',clip_high=0.2}}", "learn.loss.ppo.clip_low = \"x\": expected a number"),
            ("reward={kind='numeric',tolerance='x'}", "reward.tolerance = \"x\": expected a number"),
            // Which of the two it is, serde does not say.
            (
                "reward={kind='numeric',after='x',tolerance='x'}",
                "reward = { after = \"x\", kind = \"numeric\", tolerance = \"x\" }: string \"x\" in it, expected a number",
            ),
            ("reward=3", "reward = 3: expected a table of keys"),
            ("learn.loss={}", "learn.loss = {}: no name in it: give one with its keys, as in { NAME = {} }"),
            (
                "learn.loss={ppo={},gspo={}}",
                "learn.loss = { gspo = {}, ppo = {} }: more than one name in it: give one with its keys, as in { NAME = {} }",
            ),
            (
                "estimate.advantage={max_rl=1}",
                "estimate.advantage = { max_rl = 1 }: integer in it, expected a name alone, or a name with a table of its keys",
            ),
            ("eval.data=3", "eval.data = 3: expected a table of keys"),
            ("learn.lr_schedule=3", "learn.lr_schedule = 3: `3` is not allowed; allowed: `constant`, `cosine`"),
            (
                "learn.lr_schedule=cosin",
                "learn.lr_schedule = \"cosin\": `cosin` is not allowed; did you mean `cosine`? allowed: `constant`, `cosine`",
            ),
            ("eval.when=x", "eval.when = \"x\": `x` is not allowed; allowed: `ends`, `checkpoints`"),
        ] {
            let start = "model.path = \"m\"\n[[task]]\nkind = \"sorting\"\n";
            assert_eq!(Spec::from_text(start, &[set.to_owned()]).unwrap_err().to_string(), message);
        }
        let refused = |set: &str| Spec::from_text("", &[set.to_owned()]).unwrap_err().to_string();
        for (set, starts) in [
            ("task=[{kind='sorting'},{kind=3}]", "task.kind = [\"sorting\", 3]: `3` is not allowed; allowed: `sorting`, "),
            ("learn.loss=3", "learn.loss = 3: `3` is not allowed; allowed: `reinforce`, "),
            (
                "learn.loss=GRPO",
                "learn.loss = \"GRPO\": `GRPO` is not allowed; it is estimate.advantage = \"group_normalised\" with ",
            ),
            ("max_lag=3", "max_lag = 3: no such key; did you mean schedule.max_lag?"),
        ] {
            assert!(refused(set).starts_with(starts), "{}", refused(set));
        }
    }
}
