//! A tokenizer and its chat template as the texts of a folder, from which another machine can load both.

use super::gguf::Embedded;
use super::{TIKTOKEN, is_gguf, is_tiktoken};
use crate::{Error, Tokenizer};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

const CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";

impl Tokenizer {
    /// Returns the texts of the files from which a copy of this can be loaded, and the chat template with it:
    /// `tokenizer.json` or `tiktoken.model`, `tokenizer_config.json`, and `chat_template.jinja` if there is one.
    ///
    /// They are read where this was loaded from. A tokenizer inside a GGUF file is written as such files.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn text_files(&self) -> Result<BTreeMap<&'static str, String>, Error> {
        let mut files = BTreeMap::new();
        if is_gguf(&self.path) {
            let embedded = Embedded::open(&self.path)?;
            let spelling = |role| embedded.named(role).map(|(_, spelling)| spelling);
            let config = json!({
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": spelling("bos"),
                "eos_token": spelling("eos"),
                "clean_up_tokenization_spaces": false,
            });
            files.insert("tokenizer.json", self.to_json()?);
            files.insert(CONFIG, config.to_string());
            if let Some(template) = embedded.chat_template() {
                files.insert(TEMPLATE, template.to_owned());
            }
            return Ok(files);
        }
        let main = if is_tiktoken(&self.path) {
            TIKTOKEN
        } else {
            "tokenizer.json"
        };
        let text = std::fs::read_to_string(&self.path).map_err(Error::file(&self.path))?;
        files.insert(main, text);
        let folder = self.path.parent().unwrap_or_else(|| Path::new(""));
        let config = read(&folder.join(CONFIG))?;
        // A template is looked for in it, and beside it.
        files.insert(CONFIG, config.unwrap_or_else(|| "{}".to_owned()));
        if let Some(template) = read(&folder.join(TEMPLATE))? {
            files.insert(TEMPLATE, template);
        }
        Ok(files)
    }
}

/// Reads a file, if it is there.
fn read(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file(path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_folder_is_copied_with_its_settings_and_template() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let json = testing::tokenizer().to_json().unwrap();
        std::fs::write(path.join("tokenizer.json"), &json).unwrap();
        let tokenizer = Tokenizer::from_path(path).unwrap();
        let files = tokenizer.text_files().unwrap();
        let expected = [("tokenizer.json", json.as_str()), (CONFIG, "{}")];
        let texts = files.iter().map(|(name, text)| (*name, text.as_str()));
        assert_eq!(texts.collect::<Vec<_>>(), expected);
        std::fs::write(path.join(CONFIG), r#"{"eos_token": "x"}"#).unwrap();
        std::fs::write(path.join(TEMPLATE), "hello").unwrap();
        let files = tokenizer.text_files().unwrap();
        assert_eq!(files[CONFIG], r#"{"eos_token": "x"}"#);
        assert_eq!(files[TEMPLATE], "hello");
        std::fs::remove_file(path.join("tokenizer.json")).unwrap();
        let gone = tokenizer.text_files().unwrap_err().to_string();
        assert!(gone.contains("tokenizer.json"), "{gone}");
    }
}
