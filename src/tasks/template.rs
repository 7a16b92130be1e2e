//! Chat templates: a list of messages becomes the text that the model was trained on.
//!
//! A template is a program that came with a model. It gets `messages`, `add_generation_prompt` (true), `bos_token`,
//! `eos_token` and `raise_exception`, reaches no file and no clock (`strftime_now` is not defined), and has a limit on its work.

use crate::error::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value, context};
use std::fmt;

/// Most work of one rendering, in minijinja's units of about one instruction: some hundred times a usual chat's.
const FUEL: u64 = 2_000_000;

const NAME: &str = "chat_template";

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
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
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
