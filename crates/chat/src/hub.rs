//! What the Hugging Face Hub's own tool keeps on this machine, and where.

use std::ffi::OsString;
use std::path::PathBuf;

/// The folders of the Hub's own tool, so that nothing has to be downloaded twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubFolders {
    /// Its home, with the user's token: `HF_HOME`, else `huggingface` in the user's cache.
    pub home: Option<PathBuf>,
    /// The models that were downloaded: `HF_HUB_CACHE`, else `hub` in its home.
    pub cache: Option<PathBuf>,
}

impl HubFolders {
    /// Takes the folders from the environment, as the tool does.
    #[must_use]
    pub fn from_env() -> Self {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// Takes the folders from variables. One that is empty counts as unset.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let folder = |name: &str| {
            let value = variable(name).filter(|value| !value.is_empty());
            value.map(PathBuf::from)
        };
        let user_cache =
            || folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
        let home = folder("HF_HOME").or_else(|| Some(user_cache()?.join("huggingface")));
        let cache = folder("HF_HUB_CACHE").or_else(|| Some(home.as_ref()?.join("hub")));
        Self { home, cache }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_environment_names_the_folders_as_for_the_hubs_tool() {
        type Case<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>, Option<&'a str>);
        let (home, hub) = (
            Some("/h/.cache/huggingface"),
            Some("/h/.cache/huggingface/hub"),
        );
        let cases: [Case<'_>; 6] = [
            (&[("HOME", "/h")], home, hub),
            (&[("HOME", "/h"), ("HF_HOME", "")], home, hub),
            (
                &[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")],
                Some("/x/huggingface"),
                Some("/x/huggingface/hub"),
            ),
            (
                &[("HOME", "/h"), ("HF_HOME", "/hf")],
                Some("/hf"),
                Some("/hf/hub"),
            ),
            (&[("HF_HUB_CACHE", "/c")], None, Some("/c")),
            (&[], None, None),
        ];
        for (environment, home, cache) in cases {
            let found = HubFolders::from_variables(|name| {
                let entry = environment.iter().find(|(key, _)| *key == name);
                entry.map(|(_, value)| OsString::from(value))
            });
            assert_eq!(
                found.home.as_deref(),
                home.map(Path::new),
                "{environment:?}"
            );
            assert_eq!(
                found.cache.as_deref(),
                cache.map(Path::new),
                "{environment:?}"
            );
        }
    }
}
