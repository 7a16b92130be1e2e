//! Text to ids and back: the home of the `tokenizers` crate, and a character-level tokenizer for models made from nothing.

use crate::engine::contract::Tokenize;
use crate::engine::text_file;
use crate::error::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// Special tokens of [`char_level`]; the index is the id.
pub const SPECIAL: [&str; 4] = ["<pad>", "<bos>", "<eos>", "<unk>"];

const FILE: &str = "tokenizer.json";
const CONFIG_FILE: &str = "tokenizer_config.json";

/// Tokens that may follow one in which a character begins: one a byte.
const BYTES: usize = 4;

/// Most bytes of a `tokenizer.json`: several times those of the largest vocabularies in use.
const LARGEST: u64 = 128 << 20;

/// The tokenizer of a model folder (`tokenizer.json`, the format of Hugging Face's `tokenizers`). Clones share one copy.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    hash: String,
    /// What stands for characters that the vocabulary lacks, and its id.
    unknown: Option<(String, u32)>,
}

/// The part of a `tokenizer.json` that says what stands for the unknown.
#[derive(Deserialize)]
struct File {
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    unk_token: Option<String>,
    /// Unigram models name its place in the vocabulary.
    #[serde(default)]
    unk_id: Option<u32>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` of `folder`.
    ///
    /// # Errors
    /// A file that is missing, larger than 128 MiB, or no tokenizer.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let text = text_file::read(&path, LARGEST)?;
        let refuse = |reason: &dyn Display| Error::file(&path, format!("not a tokenizer: {reason}"));
        // Whatever a damaged file makes the tokenizers crate do, even a panic, is the file's fault.
        match catch_unwind(|| Tokenizer::parse(&text)) {
            Ok(parsed) => parsed.map_err(|reason| refuse(&reason)),
            Err(_) => Err(refuse(&"its parts contradict each other")),
        }
    }

    /// A tokenizer from the text of a `tokenizer.json`.
    fn parse(text: &str) -> tokenizers::Result<Self> {
        let mut inner = tokenizers::Tokenizer::from_str(text)?;
        let Model { unk_token, unk_id } = serde_json::from_str::<File>(text)?.model;
        let token = unk_token.or_else(|| inner.id_to_token(unk_id?));
        let unknown = token.and_then(|token| inner.token_to_id(&token).map(|id| (token, id)));
        // Ids are stored as they are: a file's own cutting and padding must not touch them.
        inner.with_truncation(None)?;
        inner.with_padding(None);
        Ok(Tokenizer { inner: Arc::new(inner), hash: hash_of(text.as_bytes()), unknown })
    }

    /// The ids of `text`. Special tokens written out in the text become their ids; none is added.
    ///
    /// # Errors
    /// Text that the tokenizer's model refuses.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let refuse = |reason: &dyn Display| {
            let start: String = text.chars().take(40).collect();
            Error::engine(format!("encoding {start:?}"), reason)
        };
        match catch_unwind(AssertUnwindSafe(|| self.inner.encode_fast(text, false))) {
            Ok(encoding) => Ok(encoding.map_err(|e| refuse(&e))?.get_ids().to_vec()),
            Err(_) => Err(refuse(&"the tokenizer gave up on it")),
        }
    }

    /// The first character of `text`, whose ids are `ids`, that the vocabulary lacks.
    pub fn unknown(&self, text: &str, ids: &[u32]) -> Option<char> {
        let (token, id) = self.unknown.as_ref()?;
        if !ids.contains(id) {
            return None;
        }
        let encoding = self.inner.encode(text, false).ok()?;
        let places = encoding.get_ids().iter().zip(encoding.get_offsets()).filter(|(found, _)| *found == id);
        // Where the text names the token itself, nothing is unknown.
        let texts = places.filter_map(|(_, (start, end))| text.get(*start..*end));
        texts.filter(|found| found != token).find_map(|found| found.chars().next())
    }

    /// The text of `ids`, for reading: ids that stop inside a character give U+FFFD there, special and unknown ids nothing.
    pub fn decode(&self, ids: &[u32]) -> String {
        decode(&self.inner, ids)
    }

    /// [`decode`](Tokenizer::decode) as a function that can be handed to other threads.
    pub fn decoder(&self) -> impl Fn(&[u32]) -> String + Clone + Send + Sync + 'static {
        let inner = Arc::clone(&self.inner);
        move |ids: &[u32]| decode(&inner, ids)
    }

    /// The text that each of `ids` adds to those before it, for reading. Of tokens that make a character only together the last has it
    /// and the others nothing; a token without text (a special one) has its name.
    pub fn pieces(&self, ids: &[u32]) -> Vec<String> {
        // A few tokens before are enough for what joins them: spaces, bytes of a character.
        let mut from = 0;
        let mut read = 0;
        let mut piece = |i: usize| {
            let before = decode(&self.inner, &ids[from..read]);
            let after = decode(&self.inner, &ids[from..=i]);
            let unfinished = after.ends_with(char::REPLACEMENT_CHARACTER) && i + 1 < ids.len() && i < read + BYTES;
            if unfinished {
                return String::new();
            }
            (from, read) = (read, i + 1);
            match after.strip_prefix(&before) {
                Some("") => self.inner.id_to_token(ids[i]).unwrap_or_default(),
                Some(new) => new.to_owned(),
                None => after,
            }
        };
        (0..ids.len()).map(&mut piece).collect()
    }

    /// The id of one token, special ones included.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// One more than the largest id: what a model's vocabulary must at least hold.
    pub fn size(&self) -> usize {
        self.inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1)
    }

    /// First 16 hexadecimal digits of BLAKE3 over the file's bytes.
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

fn decode(tokenizer: &tokenizers::Tokenizer, ids: &[u32]) -> String {
    // A decoder that refuses its own tokens leaves them as they are: the text is for reading, the ids are the truth.
    tokenizer.decode(ids, true).unwrap_or_else(|_| ids.iter().filter_map(|&id| tokenizer.id_to_token(id)).collect())
}

fn hash_of(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..16].to_owned()
}

/// A `tokenizer.json` with one token a character: ids 0..4 are [`SPECIAL`], then the characters of `alphabet` in order, each
/// once. Characters outside it become `<unk>`. Nothing is normalised, so `decode(encode(text)) == text` over the alphabet.
pub fn char_level(alphabet: &str) -> String {
    let mut vocab = Map::new();
    let special = SPECIAL.iter().map(|&token| token.to_owned());
    for token in special.chain(alphabet.chars().map(String::from)) {
        let next = vocab.len();
        vocab.entry(token).or_insert_with(|| next.into());
    }
    let added: Vec<Value> = (0..SPECIAL.len())
        .map(|id| {
            json!({
                "id": id, "content": SPECIAL[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        })
        .collect();
    let file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        // `.` would leave newlines out, and the flag that takes them in differs between regular-expression libraries.
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": false},
        "post_processor": null,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    });
    format!("{file:#}\n")
}

/// Writes [`char_level`]'s `tokenizer.json` and a `tokenizer_config.json` into `folder`, as `transformers` reads them.
///
/// # Errors
/// A folder that cannot be written.
pub fn write_char_level(folder: &Path, alphabet: &str) -> Result<()> {
    let [pad, bos, eos, unk] = SPECIAL;
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": pad, "bos_token": bos, "eos_token": eos, "unk_token": unk,
        "clean_up_tokenization_spaces": false,
    });
    for (name, text) in [(FILE, char_level(alphabet)), (CONFIG_FILE, format!("{config:#}\n"))] {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|e| Error::file(&path, e))?;
    }
    Ok(())
}

impl Tokenize for Tokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Tokenizer::encode(self, text)
    }

    fn unknown(&self, text: &str, ids: &[u32]) -> Option<char> {
        Tokenizer::unknown(self, text, ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Byte-level BPE (as GPT-2's) whose one merge makes the four bytes of an emoji three tokens.
    fn byte_level() -> Tokenizer {
        let plain = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let shifted = (0..256).filter(|&byte| !plain(byte));
        let mut letters: Vec<u32> = (0..256).collect();
        for (n, byte) in shifted.enumerate() {
            letters[byte as usize] = 256 + n as u32;
        }
        let letters: Vec<String> = letters.iter().map(|&c| char::from_u32(c).unwrap().to_string()).collect();
        let mut vocab: Map<String, Value> = letters.iter().enumerate().map(|(id, c)| (c.clone(), json!(id))).collect();
        let (first, second) = (&letters[0xF0], &letters[0x9F]);
        vocab.insert(format!("{first}{second}"), json!(256));
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
            "added_tokens": [{"id": 257, "content": "<eos>", "single_word": false, "lstrip": false, "rstrip": false,
                              "normalized": false, "special": true}],
            "pre_tokenizer": bytes, "decoder": bytes,
            "model": {"type": "BPE", "vocab": vocab, "merges": [[first, second]]},
        });
        Tokenizer::parse(&file.to_string()).unwrap()
    }

    /// Catches a character that is cut into replacement marks, a special token that vanishes, and text that is lost or said twice.
    #[test]
    fn pieces_are_the_text_token_by_token() {
        let tokenizer = byte_level();
        let ids: Vec<u32> = [&tokenizer.encode("a🦀 b").unwrap()[..], &[257, 98]].concat();
        let pieces = tokenizer.pieces(&ids);
        assert_eq!(pieces, ["a", "", "", "🦀", " ", "b", "<eos>", "b"]);
        assert_eq!(tokenizer.pieces(&[97, 256]), ["a", "\u{FFFD}"], "a character that never ends is said");
        let many: Vec<u32> = vec![0xA6; 9];
        assert_eq!(tokenizer.pieces(&many).concat().chars().filter(|c| *c == char::REPLACEMENT_CHARACTER).count(), 9);
        assert_eq!(tokenizer.pieces(&[]), [""; 0]);
    }

    #[test]
    fn emoji_split_over_three_tokens_stays_valid_text() {
        let tokenizer = byte_level();
        let ids = tokenizer.encode("a🦀").unwrap();
        assert_eq!(ids, [97, 256, 0xA6, 0x80]);
        assert_eq!(tokenizer.decode(&ids), "a🦀");
        assert_eq!(tokenizer.decode(&ids[..3]), "a\u{FFFD}");
        assert_eq!(tokenizer.decode(&ids[..2]), "a\u{FFFD}");
        assert_eq!(tokenizer.decode(&ids[2..]), "\u{FFFD}\u{FFFD}");
        let nul = tokenizer.encode("a\0b").unwrap();
        assert_eq!((nul.as_slice(), tokenizer.decode(&nul).as_str()), (&[97, 0, 98][..], "a\0b"));
    }

    #[test]
    fn special_tokens_only_where_the_text_has_them() {
        let tokenizer = byte_level();
        assert_eq!(tokenizer.encode("hi").unwrap(), [104, 105]);
        assert_eq!(tokenizer.encode("hi<eos>").unwrap(), [104, 105, 257]);
        assert_eq!(tokenizer.decode(&[104, 257, 105, 9999]), "hi");
        assert_eq!((tokenizer.id("<eos>"), tokenizer.id("none"), tokenizer.size()), (Some(257), None, 258));
    }

    /// A tokenizer that puts its own beginning and end around a text (as Llama 3's does) adds neither to a prompt, whose template
    /// has them already.
    #[test]
    fn a_prompt_of_a_template_gets_no_second_beginning() {
        let mut file: Value = serde_json::from_str(&char_level("hi\n")).unwrap();
        let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        file["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [special("<bos>"), sequence("A"), special("<eos>")],
            "pair": [special("<bos>"), sequence("A"), sequence("B")],
            "special_tokens": {
                "<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]},
                "<eos>": {"id": "<eos>", "ids": [2], "tokens": ["<eos>"]},
            },
        });
        let tokenizer = Tokenizer::parse(&file.to_string()).unwrap();
        assert_eq!(tokenizer.encode("<bos>hi\n<eos>\n").unwrap(), [1, 4, 5, 6, 2, 6]);
        assert_eq!(tokenizer.unknown("<bos>hi?", &[1, 4, 5, 3]), Some('?'));
        assert_eq!(tokenizer.encode("").unwrap(), [] as [u32; 0]);
    }

    #[test]
    fn characters_round_trip_with_newlines_spaces_and_specials() {
        let folder = tempfile::tempdir().unwrap();
        write_char_level(folder.path(), "01+= \né🦀1").unwrap();
        let tokenizer = Tokenizer::load(folder.path()).unwrap();
        assert_eq!(tokenizer.size(), 12);
        let text = "10 +\n\n 1=é🦀";
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(ids, [5, 4, 8, 6, 9, 9, 8, 5, 7, 10, 11]);
        assert_eq!(tokenizer.decode(&ids), text);
        assert_eq!(tokenizer.encode("<bos>1<eos>").unwrap(), [1, 5, 2]);
        assert_eq!(tokenizer.encode("1?").unwrap(), [5, 3]);
        assert_eq!(tokenizer.decode(&[1, 5, 2, 2, 0]), "1");
        assert_eq!(tokenizer.encode("").unwrap(), [] as [u32; 0]);
    }

    #[test]
    fn the_first_unknown_character_is_found() {
        let tokenizer = Tokenizer::parse(&char_level("01+= é")).unwrap();
        let unknown = |text: &str| tokenizer.unknown(text, &tokenizer.encode(text).unwrap());
        assert_eq!(unknown("1+1=é"), None);
        assert_eq!(unknown("é1+🦀2"), Some('🦀'));
        assert_eq!(unknown("<unk>1"), None);
        assert_eq!(unknown("<unk>1?"), Some('?'));
        assert_eq!(byte_level().unknown("🦀", &[97]), None);
        let pieces = json!([["<unk>", 0.0], ["a", -1.0], ["b", -2.0]]);
        let model = json!({"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": false});
        let file = json!({"version": "1.0", "added_tokens": [], "model": model});
        let unigram = Tokenizer::parse(&file.to_string()).unwrap();
        assert_eq!(unigram.unknown("ab?", &unigram.encode("ab?").unwrap()), Some('?'));
    }

    /// A pattern that goes back and forth without end stops at a limit: the text is split elsewhere, in a second or two.
    #[test]
    fn a_pattern_without_end_ends() {
        let file: Value = serde_json::from_str(&char_level("ab")).unwrap();
        let mut file = file;
        file["pre_tokenizer"]["pattern"]["Regex"] = json!("(?=((a+)+)+b)(a|aa)+$");
        let tokenizer = Tokenizer::parse(&file.to_string()).unwrap();
        let started = std::time::Instant::now();
        let _ = tokenizer.encode(&"a".repeat(2000));
        assert!(started.elapsed().as_secs() < 20);
    }

    #[test]
    fn decoder_works_from_another_thread() {
        let tokenizer = Tokenizer::parse(&char_level("ab")).unwrap();
        let decode = tokenizer.decoder().clone();
        assert_eq!(std::thread::spawn(move || decode(&[4, 5])).join().unwrap(), "ab");
    }

    #[test]
    fn the_hash_is_of_the_file_and_its_truncation_is_off() {
        let text = char_level("ab");
        let cut = text.replace(
            "\"truncation\": null",
            r#""truncation": {"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}"#,
        );
        assert_ne!(cut, text);
        let (plain, cut) = (Tokenizer::parse(&text).unwrap(), Tokenizer::parse(&cut).unwrap());
        assert_eq!(cut.encode("abab").unwrap().len(), 4);
        assert_eq!(plain.hash(), &blake3::hash(text.as_bytes()).to_hex().as_str()[..16]);
        assert_ne!(plain.hash(), cut.hash());
    }

    #[test]
    fn a_missing_or_broken_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Tokenizer::load(folder.path()).unwrap_err().to_string();
        assert!(missing.contains("tokenizer.json: "), "{missing}");
        std::fs::write(folder.path().join(FILE), "{").unwrap();
        let broken = Tokenizer::load(folder.path()).unwrap_err().to_string();
        assert!(broken.contains("tokenizer.json: not a tokenizer"), "{broken}");
    }
}
