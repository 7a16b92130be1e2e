//! Conversations through chat templates, to the letter as transformers renders them (`tests/peers/make_chats.py`).

use super::*;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
struct Conversation {
    messages: Ordered,
    tools: Option<Ordered>,
}

/// What transformers made of a conversation.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Rendered {
    Text(String),
    /// The template's own words, or a Python error's name.
    Error(String),
}

#[derive(Deserialize)]
struct Golden {
    tokens: BTreeMap<String, String>,
    /// By template and conversation, with the head of an answer (`answer`) and without it (`nothing`).
    texts: BTreeMap<String, BTreeMap<String, BTreeMap<String, Rendered>>>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/golden/chat")
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&fs::read_to_string(folder().join(name)).unwrap()).unwrap()
}

#[test]
fn conversations_are_rendered_as_transformers_does() {
    let chats: BTreeMap<String, Conversation> = read("chats.json");
    let golden: Golden = read("texts.json");
    assert_eq!((chats.len(), golden.texts.len()), (10, 5));
    let mut wrong = Vec::new();
    for (style, texts) in &golden.texts {
        let text = fs::read_to_string(folder().join(format!("templates/{style}.jinja"))).unwrap();
        let template = ChatTemplate::new(&text, &golden.tokens["bos_token"], &golden.tokens["eos_token"]).unwrap();
        for (name, right) in texts {
            let Conversation { messages, tools } = &chats[name];
            let chat = Chat { messages: messages.clone(), tools: tools.clone() };
            for (next, right) in [(Next::Answer, &right["answer"]), (Next::Nothing, &right["nothing"])] {
                match (template.render(&chat, next).map_err(|e| e.to_string()), right) {
                    (Ok(ours), Rendered::Text(text)) if ours == *text => {}
                    // What Python cannot add minijinja cannot either; the words differ.
                    (Err(_), Rendered::Error(python)) if python == "TypeError" => {}
                    (Err(ours), Rendered::Error(raised)) if ours.ends_with(&format!(": {raised}")) => {}
                    (ours, right) => wrong.push(format!("{style}, {name}, {next:?}:\n  {ours:?}\n  {right:?}")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
