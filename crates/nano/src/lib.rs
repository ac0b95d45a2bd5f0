//! A language model that comes with Tinkrs: `tinkrs/nano`.
//!
//! It has 1.7 million weights, speaks short simple English and follows a few forms of instructions.
//! It was trained by the engine of this repository, on text that [`text`] makes up:
//! `examples/train.rs` is the recipe, and `model/` what came out of it.
//!
//! ```
//! let folder = tempfile::tempdir()?;
//! tinkrs_nano::write_to(folder.path())?;
//! let weights = tinkrs_engine::weights::HuggingFaceFolder::open(folder.path())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod text;

use std::io;
use std::path::Path;

/// The name of the model.
pub const NAME: &str = "tinkrs/nano";

/// The files of the model, as in a Hugging Face folder.
const FILES: [(&str, &[u8]); 4] = [
    ("config.json", include_bytes!("../model/config.json")),
    (
        "model.safetensors",
        include_bytes!("../model/model.safetensors"),
    ),
    ("tokenizer.json", include_bytes!("../model/tokenizer.json")),
    (
        "tokenizer_config.json",
        include_bytes!("../model/tokenizer_config.json"),
    ),
];

/// Writes the model into a folder, which is made if it is not there. Files that are already as they
/// should be are left alone.
///
/// # Errors
///
/// When the system refuses.
pub fn write_to(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for (name, bytes) in FILES {
        let path = folder.join(name);
        if std::fs::read(&path).is_ok_and(|found| found == bytes) {
            continue;
        }
        // Renamed into place, because another process may be reading; a name of its own, because another one
        // may be writing.
        let partial = folder.join(format!("{name}.{:016x}.partial", fastrand::u64(..)));
        let written = std::fs::write(&partial, bytes);
        if let Err(error) = written.and_then(|()| std::fs::rename(&partial, &path)) {
            let _ = std::fs::remove_file(&partial);
            return Err(error);
        }
    }
    Ok(())
}
