//! Text to ids and back: the home of the `tokenizers` crate, and a character-level tokenizer for models made from nothing.

use crate::error::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// Special tokens of [`char_level`]; the index is the id.
pub const SPECIAL: [&str; 4] = ["<pad>", "<bos>", "<eos>", "<unk>"];

const FILE: &str = "tokenizer.json";
const CONFIG_FILE: &str = "tokenizer_config.json";

/// The tokenizer of a model folder (`tokenizer.json`, the format of Hugging Face's `tokenizers`). Clones share one copy.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    hash: String,
}

impl Tokenizer {
    /// Reads `tokenizer.json` of `folder`.
    ///
    /// # Errors
    /// A file that is missing or that is no tokenizer.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let text = std::fs::read_to_string(&path).map_err(|e| Error::file(&path, e))?;
        Tokenizer::parse(&text).map_err(|reason| Error::file(&path, format!("not a tokenizer: {reason}")))
    }

    /// A tokenizer from the text of a `tokenizer.json`.
    fn parse(text: &str) -> tokenizers::Result<Self> {
        let mut inner = tokenizers::Tokenizer::from_str(text)?;
        // Ids are stored as they are: a file's own cutting and padding must not touch them.
        inner.with_truncation(None)?;
        inner.with_padding(None);
        Ok(Tokenizer { inner: Arc::new(inner), hash: hash_of(text.as_bytes()) })
    }

    /// The ids of `text`. Special tokens written out in the text become their ids; none is added.
    ///
    /// # Errors
    /// Text that the tokenizer's model refuses.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, false).map_err(|e| Error::engine(format!("encoding {text:?}"), e))?;
        Ok(encoding.get_ids().to_vec())
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
