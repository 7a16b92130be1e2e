//! Chat templates: a list of messages becomes the text that the model was trained on.
//!
//! A template is a program that came with a model. It gets `messages`, `add_generation_prompt` (true), `bos_token`,
//! `eos_token` and `raise_exception`, reaches no file and no clock (`strftime_now` is not defined), and has a limit on its work and
//! on what it makes. What outruns them is a value that holds itself and is joined to a text: minijinja writes it without end.

use crate::error::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value, context};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};
use std::{fmt, io};

/// Most work of one rendering, in minijinja's units of about one instruction, or 64 bytes that are made (26 MB in all): some
/// ten times a long chat's.
const FUEL: u64 = 400_000;

const NAME: &str = "chat_template";

/// Largest value that is written out, bytes of its texts and one more each; its deepest level.
const LARGEST_VALUE: usize = 4 << 20;
const DEEPEST_VALUE: usize = 64;

/// Deepest nesting of macros and recursive loops; minijinja's own 500 are more than a small stack holds.
const DEPTH: usize = 200;

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

/// The `tojson` that templates were written for: as Python's `json.dumps` writes it, without minijinja's escapes for HTML.
fn to_json(value: &Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent = options.get::<Option<usize>>("indent")?.map(|width| vec![b' '; width.min(16)]);
    check_size(value)?;
    let mut text = Vec::new();
    let written = match &indent {
        Some(indent) => {
            let pretty = PrettyFormatter::with_indent(indent);
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, pretty))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, Spaced)),
    };
    let refuse = |e: &dyn fmt::Display| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string());
    written.map_err(|e| refuse(&e))?;
    String::from_utf8(text).map_err(|e| refuse(&e))
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

/// JSON on one line with a space after each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
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
            minijinja::escape_formatter(out, state, value)
        });
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(NAME, text.to_owned()).map_err(refuse)?;
        Ok(ChatTemplate { environment, bos_token: bos_token.into(), eos_token: eos_token.into() })
    }

    /// The text that the policy goes on from: all messages, and the head of the assistant's next one.
    ///
    /// # Errors
    /// What the template refuses (`raise_exception`), cannot do, or does without end.
    pub fn render(&self, messages: &[serde_json::Value]) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME).map_err(TemplateError)?;
        let (bos_token, eos_token) = (&self.bos_token, &self.eos_token);
        template
            .render(
                context! { messages => Value::from(Serde(messages)), bos_token, eos_token, add_generation_prompt => true },
            )
            .map_err(TemplateError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rendered(template: &str, messages: &[serde_json::Value]) -> Result<String, String> {
        let template = ChatTemplate::new(template, "<s>", "</s>").map_err(|e| e.to_string())?;
        template.render(messages).map_err(|e| e.to_string())
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
            ("{% if tools is defined %}tools{% else %}none{% endif %}{{ nothing }}", "none"),
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
