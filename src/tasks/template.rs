//! Chat templates: a list of messages becomes the text that the model was trained on.
//!
//! A template is a program that came with a model. It gets what it gets in transformers, where they come from: `messages`, `tools`
//! and `documents` (none), `add_generation_prompt`, `bos_token`, `eos_token` and `raise_exception`. It reaches no file and no clock
//! (`strftime_now` is not defined, so that a prompt is the same every day), and has a limit on its work and on what it makes. What outruns them is a value that holds itself and is joined to a text: minijinja writes it without end.

use super::python_json::{Options, dumps, number};
use crate::error::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value, context};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// Most work of one rendering, in minijinja's units of about one instruction, or 64 bytes that are made (26 MB in all): some
/// ten times a long chat's.
const FUEL: u64 = 400_000;

const NAME: &str = "chat_template";

/// Largest value that is written out, bytes of its texts and one more each; its deepest level.
const LARGEST_VALUE: usize = 4 << 20;
const DEEPEST_VALUE: usize = 64;

/// Deepest nesting of macros and recursive loops; minijinja's own 500 are more than a small stack holds.
const DEPTH: usize = 200;

/// JSON whose objects keep their keys in the order of their text: templates write them out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Ordered(Value);

impl Ordered {
    /// One value of the object that `text` holds; None where it holds none of that name.
    pub fn column(text: &str, name: &str) -> Option<Ordered> {
        serde_json::from_str::<BTreeMap<String, Ordered>>(text).ok()?.remove(name)
    }
}

impl From<&[serde_json::Value]> for Ordered {
    fn from(list: &[serde_json::Value]) -> Ordered {
        Ordered(Value::from(Serde(list)))
    }
}

/// What a template makes a text of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chat {
    /// A list of objects with `role`, `content` and what else the template knows.
    pub messages: Ordered,
    /// JSON schemas of the functions that the model may call.
    pub tools: Option<Ordered>,
}

/// What follows the last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The head of the assistant's answer (`add_generation_prompt`).
    Answer,
    /// Nothing: the conversation is whole.
    Nothing,
}

/// Names that templates have for what a model thinks before it answers.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The message, in which what was thought has each name that templates read, as transformers gives it.
fn aliased(message: Value) -> Value {
    let get = |name: &str| message.get_attr(name).ok().filter(|value| !value.is_none() && !value.is_undefined());
    let Some(thought) = REASONING.into_iter().find_map(get) else { return message };
    let mut pairs = vec![(Value::from("thinking"), thought.clone())];
    for key in message.try_iter().into_iter().flatten() {
        let value = message.get_item(&key).unwrap_or_default();
        set(&mut pairs, key, value);
    }
    set(&mut pairs, Value::from(REASONING[0]), thought);
    Value::from(Serde(Pairs(pairs)))
}

/// As in a dictionary of Python: a key that is there keeps its place.
fn set(pairs: &mut Vec<(Value, Value)>, key: Value, value: Value) {
    match pairs.iter_mut().find(|(name, _)| *name == key) {
        Some(pair) => pair.1 = value,
        None => pairs.push((key, value)),
    }
}

struct Pairs(Vec<(Value, Value)>);

impl Serialize for Pairs {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

/// Why a template could not be applied to a prompt.
#[derive(Debug, thiserror::Error)]
pub struct TemplateError(#[source] minijinja::Error);

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chat template")?;
        if let Some(line) = self.0.line() {
            write!(f, ", line {line}")?;
        }
        match (self.0.kind(), self.0.detail()) {
            (ErrorKind::OutOfFuel, _) => write!(f, ": more than {FUEL} units of work; is there a loop without end?"),
            (_, Some(detail)) => write!(f, ": {detail}"),
            (kind, None) => write!(f, ": {kind}"),
        }
    }
}

/// The `tojson` that templates were written for, transformers' own: Python's `json.dumps` with its options, without the escapes
/// for HTML that Jinja and minijinja have.
fn to_json(value: &Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent = options.get::<Option<usize>>("indent")?.map(|width| width.min(16));
    let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    options.assert_all_used()?;
    check_size(value)?;
    let refuse = |e: &dyn fmt::Display| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string());
    let separators = match separators {
        Some(two) => two.try_into().map_err(|_| refuse(&"separators are two texts"))?,
        // No space at the end of a line.
        None => [if indent.is_some() { "," } else { ", " }, ": "].map(String::from),
    };
    dumps(value, &Options { indent, separators, ensure_ascii, sort_keys }).map_err(|e| refuse(&e))
}

/// Refuses a value that is larger, or goes deeper, than anything that is to be read: one that holds itself has no end.
fn check_size(value: &Value) -> Result<(), minijinja::Error> {
    let mut left = LARGEST_VALUE;
    match fits(value, 0, &mut left) {
        true => Ok(()),
        false => {
            let why = format!("a value of more than {LARGEST_VALUE} bytes or {DEEPEST_VALUE} levels; does it hold itself?");
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, why))
        }
    }
}

fn fits(value: &Value, depth: usize, left: &mut usize) -> bool {
    let size = value.as_str().map_or(1, |text| 1 + text.len());
    if depth > DEEPEST_VALUE || size > *left {
        return false;
    }
    *left -= size;
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => value.try_iter().is_ok_and(|mut items| {
            items.all(|item| {
                let inner = if value.kind() == ValueKind::Map { value.get_item(&item).ok() } else { None };
                fits(&item, depth + 1, left) && inner.is_none_or(|inner| fits(&inner, depth + 1, left))
            })
        }),
        _ => true,
    }
}

impl ChatTemplate {
    /// Compiles the text of a model's `chat_template.jinja`, or of `chat_template` in its `tokenizer_config.json`.
    ///
    /// # Errors
    /// Text that is no template: the line and what is wrong there.
    pub fn new(text: &str, bos_token: &str, eos_token: &str) -> Result<ChatTemplate> {
        let refuse = |e| Error::config(NAME, "the model's own", TemplateError(e).to_string());
        // As the templates' first home, transformers, sets its Jinja.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(refuse)?;
        let mut environment = Environment::new();
        environment.set_syntax(syntax);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(DEPTH);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(|out, state, value| {
            check_size(value)?;
            match f64::try_from(value.clone()) {
                Ok(float) if value.kind() == ValueKind::Number && !value.is_integer() && float.is_finite() => {
                    out.write_str(&number(float)).map_err(minijinja::Error::from)
                }
                _ => minijinja::escape_formatter(out, state, value),
            }
        });
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(NAME, text.to_owned()).map_err(refuse)?;
        Ok(ChatTemplate { environment, bos_token: bos_token.into(), eos_token: eos_token.into() })
    }

    /// The text of all messages, and what is to follow them: for the policy to go on from, the head of an answer.
    ///
    /// # Errors
    /// What the template refuses (`raise_exception`), cannot do, or does without end.
    pub fn render(&self, chat: &Chat, next: Next) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME).map_err(TemplateError)?;
        let (bos_token, eos_token) = (&self.bos_token, &self.eos_token);
        let messages: Value = chat.messages.0.try_iter().map_err(TemplateError)?.map(aliased).collect();
        let tools = chat.tools.as_ref().map(|tools| tools.0.clone());
        let (documents, add_generation_prompt) = (Value::from(()), next == Next::Answer);
        let context = context! { messages, tools, documents, bos_token, eos_token, add_generation_prompt };
        template.render(context).map_err(TemplateError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rendered(template: &str, messages: &[serde_json::Value]) -> Result<String, String> {
        let template = ChatTemplate::new(template, "<s>", "</s>").map_err(|e| e.to_string())?;
        template.render(&Chat { messages: messages.into(), tools: None }, Next::Answer).map_err(|e| e.to_string())
    }

    fn chat() -> Vec<serde_json::Value> {
        vec![
            json!({"role": "user", "content": " <b>Hi</b> & 1+1? "}),
            json!({"role": "assistant", "content": "<think>\nwell\n</think>\n\n2"}),
            json!({"role": "user", "content": "Sure?"}),
        ]
    }

    #[test]
    fn chat_ml() {
        let template = "{{ bos_token }}{% for message in messages %}\n    \
            {{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\n\
            {% endfor %}\n\
            {% if add_generation_prompt %}\n{{ '<|im_start|>assistant\\n' }}\n{%- endif %}\n";
        let expected = "<s>    <|im_start|>user\n <b>Hi</b> & 1+1? <|im_end|>\n\n";
        let found = rendered(template, &chat()[..1]).unwrap();
        assert_eq!(found, format!("{expected}<|im_start|>assistant\n"));
    }

    /// What today's templates lean on: Python's string methods, backward slices, namespaces, macros, loop controls, `tojson`.
    #[test]
    fn what_templates_lean_on() {
        let cases = [
            ("{{ messages[0].content.strip() }}", "<b>Hi</b> & 1+1?"),
            ("{{ messages[0]['content'] | trim }}", "<b>Hi</b> & 1+1?"),
            ("{{ messages[1].content.split('</think>')[-1].lstrip('\\n') }}", "2"),
            ("{{ messages[1].content.startswith('<think>') }}", "True"),
            ("{% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %}", "uau"),
            ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "3"),
            ("{% macro say(m) %}[{{ m.role }}]{% endmacro %}{{ say(messages[1]) }}", "[assistant]"),
            ("{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ loop.index }}{% endfor %}", "1"),
            ("{{ {'b': [1, 'x'], 'c': none} | tojson }}", r#"{"b": [1, "x"], "c": null}"#),
            ("{{ {'b': 1} | tojson(indent=2) }}", "{\n  \"b\": 1\n}"),
            ("{{ messages[0].content | tojson }}", "\" <b>Hi</b> & 1+1? \""),
            // As in transformers, where no tools are None: defined, and not there.
            ("{% if tools is defined %}{{ tools }}{% endif %}{{ documents }}{{ nothing }}", "NoneNone"),
            ("{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=true, separators=[',', ':']) }}", r#"{"b":1,"a":"\u00e9"}"#),
            ("{{ {'b': 1, 'a': [2]} | tojson(sort_keys=true, indent=1) }}", "{\n \"a\": [\n  2\n ],\n \"b\": 1\n}"),
            ("{% if strftime_now is defined %}clock{% endif %}{{ eos_token }}", "</s>"),
            ("{% if messages[0].content is string and not messages[0].tool_calls %}text{% endif %}", "text"),
        ];
        for (template, expected) in cases {
            assert_eq!(rendered(template, &chat()).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let cases = [
            ("ok\n{{ raise_exception('roles must alternate') }}", "chat template, line 2: roles must alternate"),
            ("{{ messages[9].content }}", "chat template, line 1: "),
            ("{{ messages[0].content.frobnicate() }}", "chat template, line 1: "),
            ("{% include '/etc/passwd' %}", "chat_template = the model's own: chat template, line 1: "),
            ("x\n{% if %}", "chat_template = the model's own: chat template, line 2: "),
        ];
        for (template, expected) in cases {
            let message = rendered(template, &chat()).unwrap_err();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn endless_work_ends() {
        // A long list is looked at once: 137 s where each element was looked up by its value.
        let started = std::time::Instant::now();
        assert_eq!(rendered("{{ range(100000) }}", &chat()).unwrap().len(), 688_890);
        assert!(started.elapsed().as_secs() < 5);
        let cases = [
            "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
            "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
            "{% for i in range(100000) recursive %}{{ loop(range(100000)) }}{% endfor %}",
            // Texts that grow: written, kept for later, doubled in each turn.
            "{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}",
            "{% set y %}{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}{% endset %}{{ y | length }}",
            "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x | length }}",
            "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x | replace('x', 'xx') %}{% endfor %}",
            "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
            "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
            // A value that holds itself.
            "{% set n = namespace(x=1) %}{% set n.x = n, 1 %}{{ n.x }}",
            "{% set n = namespace(x=1) %}{% set n.x = [n] %}{{ n | tojson }}",
            "{{ 'x' * 1000000000 }}",
        ];
        for template in cases {
            let message = rendered(template, &chat()).unwrap_err();
            assert!(message.starts_with("chat template, line 1: "), "{message}");
        }
        let message = rendered(cases[0], &chat()).unwrap_err();
        assert!(message.ends_with("more than 400000 units of work; is there a loop without end?"), "{message}");
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod golden;
