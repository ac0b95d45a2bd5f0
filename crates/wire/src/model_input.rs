//! Model inputs: chunks as protobuf messages (training) and as JSON (sampling).

use crate::little_endian as le;
use crate::proto;
use tinkrs_types::input::{Chunk, Dmel, Image, ImageFormat};
use tinkrs_types::{InvalidInput, ModelInput};

/// Writes the chunks of an input, lending their bytes.
pub(crate) fn to_proto(input: ModelInput) -> Result<Vec<proto::Chunk>, InvalidInput> {
    let chunks = input.into_chunks().into_iter().enumerate();
    chunks
        .map(|(index, chunk)| chunk_to_proto(chunk).map_err(|e| at(index, e)))
        .collect()
}

/// Reads the chunks of an input.
pub(crate) fn from_proto(chunks: Vec<proto::Chunk>) -> Result<ModelInput, InvalidInput> {
    let chunks = chunks.into_iter().enumerate();
    let chunks: Result<Vec<Chunk>, _> = chunks
        .map(|(index, chunk)| chunk_from_proto(chunk).map_err(|e| at(index, e)))
        .collect();
    Ok(ModelInput::from_chunks(chunks?))
}

fn at(index: usize, error: InvalidInput) -> InvalidInput {
    error.inside(&format!("model_input.chunks[{index}]"))
}

fn chunk_to_proto(chunk: Chunk) -> Result<proto::Chunk, InvalidInput> {
    use proto::chunk::Chunk as Arm;
    let arm = match chunk {
        Chunk::Text(tokens) => {
            le::check_tokens("tokens", &tokens)?;
            Arm::EncodedText(proto::EncodedTextChunk {
                tokens: le::lend(tokens),
            })
        }
        Chunk::Image(image) => Arm::Image(proto::ImageChunk {
            format: image.format.to_string(),
            expected_tokens: expected_tokens_to_proto(image.expected_tokens)?,
            data: image.data.into(),
            override_dimensions: None,
        }),
        Chunk::Dmel(dmel) => Arm::Dmel(proto::DmelChunk {
            dmel: dmel.into_bytes().into(),
        }),
        Chunk::ImageAssetPointer(_) => {
            let allowed = "encoded_text, image or dmel, as training takes no pointers";
            return Err(InvalidInput::new("type", "image_asset_pointer", allowed));
        }
    };
    Ok(proto::Chunk { chunk: Some(arm) })
}

fn chunk_from_proto(chunk: proto::Chunk) -> Result<Chunk, InvalidInput> {
    use proto::chunk::Chunk as Arm;
    Ok(match chunk.chunk {
        Some(Arm::EncodedText(text)) => Chunk::Text(le::read_tokens("tokens", &text.tokens)?),
        Some(Arm::Image(image)) => Chunk::Image(image_from_proto(image)?),
        Some(Arm::Dmel(dmel)) => Chunk::Dmel(Dmel::new(dmel.dmel)?),
        None => {
            return Err(InvalidInput::new(
                "chunk",
                "nothing",
                "encoded_text, image or dmel",
            ));
        }
    })
}

fn image_from_proto(image: proto::ImageChunk) -> Result<Image, InvalidInput> {
    if image.override_dimensions.is_some() {
        return Err(InvalidInput::new(
            "override_dimensions",
            "a size",
            "no such field: it is not supported",
        ));
    }
    let expected_tokens = match image.expected_tokens.map(u32::try_from) {
        None => None,
        Some(Ok(count)) => Some(count),
        Some(Err(_)) => {
            let found = image.expected_tokens.unwrap_or_default();
            return Err(InvalidInput::new("expected_tokens", found, "0 or more"));
        }
    };
    let format = match image.format.as_str() {
        "png" => ImageFormat::Png,
        "jpeg" => ImageFormat::Jpeg,
        other => {
            return Err(InvalidInput::new(
                "format",
                format_args!("`{other}`"),
                "`png` or `jpeg`",
            ));
        }
    };
    Ok(Image {
        data: image.data.into(),
        format,
        expected_tokens,
    })
}

fn expected_tokens_to_proto(count: Option<u32>) -> Result<Option<i32>, InvalidInput> {
    count.map(i32::try_from).transpose().map_err(|_| {
        InvalidInput::new(
            "expected_tokens",
            count.unwrap_or_default(),
            "at most 2^31 - 1",
        )
    })
}

/// The JSON form, for `#[serde(with = "model_input::json")]`.
pub(crate) mod json {
    use crate::decimal;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;
    use serde::de::{self, Deserializer, SeqAccess, Visitor};
    use serde::{Deserialize, Serialize, Serializer};
    use std::fmt;
    use tinkrs_types::ModelInput;
    use tinkrs_types::input::{Chunk, Dmel, Image, ImageAssetPointer, ImageFormat};

    /// A chunk of an input. Bytes are in base64.
    #[derive(Serialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[cfg_attr(feature = "schema", schemars(rename = "Chunk"))]
    #[serde(tag = "type", rename_all = "snake_case")]
    enum Out<'a> {
        EncodedText {
            tokens: &'a [u32],
        },
        Image {
            data: String,
            format: ImageFormat,
            #[serde(skip_serializing_if = "Option::is_none")]
            expected_tokens: Option<u32>,
        },
        ImageAssetPointer {
            location: &'a str,
            format: ImageFormat,
            #[serde(skip_serializing_if = "Option::is_none")]
            expected_tokens: Option<u32>,
        },
        Dmel {
            dmel: String,
        },
    }

    /// What goes into a model, chunk by chunk.
    #[derive(Serialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[cfg_attr(feature = "schema", schemars(rename = "ModelInput"))]
    pub(crate) struct Chunks<'a> {
        chunks: Vec<Out<'a>>,
    }

    pub(crate) fn serialize<S: Serializer>(
        input: &ModelInput,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        Chunks {
            chunks: input.chunks().iter().map(out).collect(),
        }
        .serialize(serializer)
    }

    /// Appends the chunks of an input, with commas between them.
    pub(crate) fn append_chunks(text: &mut Vec<u8>, input: &ModelInput) {
        for (index, chunk) in input.chunks().iter().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            match chunk {
                Chunk::Text(tokens) => {
                    text.extend_from_slice(br#"{"type":"encoded_text","tokens":["#);
                    decimal::append_list(text, tokens);
                    text.extend_from_slice(b"]}");
                }
                other => serde_json::to_writer(&mut *text, &out(other))
                    .expect("a chunk has text keys and whole numbers"),
            }
        }
    }

    fn out(chunk: &Chunk) -> Out<'_> {
        match chunk {
            Chunk::Text(tokens) => Out::EncodedText { tokens },
            Chunk::Image(image) => Out::Image {
                data: BASE64.encode(&image.data),
                format: image.format,
                expected_tokens: image.expected_tokens,
            },
            Chunk::ImageAssetPointer(pointer) => Out::ImageAssetPointer {
                location: &pointer.location,
                format: pointer.format,
                expected_tokens: pointer.expected_tokens,
            },
            Chunk::Dmel(dmel) => Out::Dmel {
                dmel: BASE64.encode(dmel.as_bytes()),
            },
        }
    }

    /// Any chunk that any client version sends. Older ones leave `type` out, and the first
    /// images came with their size, which is not needed, and with the count of their tokens as `tokens`.
    #[derive(Deserialize)]
    struct In {
        #[serde(rename = "type")]
        kind: Option<String>,
        tokens: Option<Tokens>,
        data: Option<String>,
        format: Option<ImageFormat>,
        expected_tokens: Option<u32>,
        location: Option<String>,
        dmel: Option<String>,
        #[serde(rename = "height")]
        _height: Option<serde_json::Value>,
        #[serde(rename = "width")]
        _width: Option<serde_json::Value>,
    }

    impl In {
        /// Refuses members that do not go with a type, because they would be ignored.
        fn refuse(&self, kind: &str, members: &[&str]) -> Result<(), String> {
            let is_given = |member: &&&str| match **member {
                "tokens" => self.tokens.is_some(),
                "data" => self.data.is_some(),
                "format" => self.format.is_some(),
                "expected_tokens" => self.expected_tokens.is_some(),
                "location" => self.location.is_some(),
                "dmel" => self.dmel.is_some(),
                _ => false,
            };
            match members.iter().find(is_given) {
                None => Ok(()),
                Some(member) => Err(format!("`{member}` does not go with the type `{kind}`")),
            }
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<ModelInput, D::Error> {
        #[derive(Deserialize)]
        struct Chunks {
            chunks: Vec<In>,
        }
        let chunks = Chunks::deserialize(deserializer)?
            .chunks
            .into_iter()
            .enumerate();
        let read = |(index, chunk)| {
            read_chunk(chunk)
                .map_err(|reason| de::Error::custom(format_args!("chunks[{index}]: {reason}")))
        };
        Ok(ModelInput::from_chunks(
            chunks.map(read).collect::<Result<Vec<_>, _>>()?,
        ))
    }

    fn read_chunk(chunk: In) -> Result<Chunk, String> {
        let kind = chunk.kind.as_deref().or(match &chunk {
            In {
                tokens: Some(Tokens::Ids(_)),
                ..
            } => Some("encoded_text"),
            In {
                location: Some(_), ..
            } => Some("image_asset_pointer"),
            In { data: Some(_), .. } => Some("image"),
            In { dmel: Some(_), .. } => Some("dmel"),
            _ => None,
        });
        match kind {
            Some(kind @ "encoded_text") => chunk.refuse(
                kind,
                &["data", "format", "expected_tokens", "location", "dmel"],
            )?,
            Some(kind @ "image") => chunk.refuse(kind, &["location", "dmel"])?,
            Some(kind @ "image_asset_pointer") => chunk.refuse(kind, &["data", "dmel"])?,
            Some(kind @ "dmel") => chunk.refuse(
                kind,
                &["tokens", "data", "format", "expected_tokens", "location"],
            )?,
            _ => {}
        }
        let expected_tokens = match chunk.tokens {
            Some(Tokens::Count(count)) => chunk.expected_tokens.or(Some(count)),
            _ => chunk.expected_tokens,
        };
        let format = || chunk.format.ok_or("`format` is missing: `png` or `jpeg`");
        let bytes = |text: &str| BASE64.decode(text).map_err(|e| format!("not base64: {e}"));
        match kind {
            Some("encoded_text") => match chunk.tokens {
                Some(Tokens::Ids(tokens)) => Ok(Chunk::Text(tokens)),
                _ => Err("`tokens` is missing: a list of token ids".to_owned()),
            },
            Some("image") => {
                let data = chunk
                    .data
                    .as_deref()
                    .ok_or("`data` is missing: the image in base64")?;
                Ok(Chunk::Image(Image {
                    data: bytes(data)?,
                    format: format()?,
                    expected_tokens,
                }))
            }
            Some("image_asset_pointer") => {
                let format = format()?;
                let location = chunk
                    .location
                    .ok_or("`location` is missing: where the image lies")?;
                Ok(Chunk::ImageAssetPointer(ImageAssetPointer {
                    location,
                    format,
                    expected_tokens,
                }))
            }
            Some("dmel") => {
                let dmel = chunk
                    .dmel
                    .as_deref()
                    .ok_or("`dmel` is missing: a container in base64")?;
                Dmel::new(bytes(dmel)?)
                    .map(Chunk::Dmel)
                    .map_err(|e| e.to_string())
            }
            Some(other) => Err(format!(
                "unknown type `{other}`: `encoded_text`, `image`, `image_asset_pointer` or `dmel`"
            )),
            None => Err("no `type`, and nothing to tell it by".to_owned()),
        }
    }

    /// A text chunk's `tokens` are ids; an old image's are their number.
    enum Tokens {
        Ids(Vec<u32>),
        Count(u32),
    }

    impl<'de> Deserialize<'de> for Tokens {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Read;

            impl<'de> Visitor<'de> for Read {
                type Value = Tokens;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a list of token ids from 0 to 2^31 - 1")
                }

                fn visit_u64<E: de::Error>(self, count: u64) -> Result<Tokens, E> {
                    u32::try_from(count).map(Tokens::Count).map_err(E::custom)
                }

                fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tokens, A::Error> {
                    let mut ids = Vec::new();
                    while let Some(id) = items.next_element::<u32>()? {
                        if id > i32::MAX as u32 {
                            let found = de::Unexpected::Unsigned(id.into());
                            return Err(de::Error::invalid_value(found, &self));
                        }
                        ids.push(id);
                    }
                    Ok(Tokens::Ids(ids))
                }
            }

            deserializer.deserialize_any(Read)
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use serde_json::{Value, json};

        fn read(chunk: Value) -> Result<ModelInput, serde_json::Error> {
            deserialize(json!({"chunks": [chunk]}))
        }

        #[test]
        fn a_chunk_without_a_type_is_told_by_its_members() {
            let image = |expected| Image {
                data: vec![1],
                format: ImageFormat::Png,
                expected_tokens: expected,
            };
            let cases: [(Value, Chunk); 4] = [
                (json!({"tokens": [1, 2]}), vec![1, 2].into()),
                (json!({"data": "AQ==", "format": "png"}), image(None).into()),
                (
                    json!({"data": "AQ==", "format": "png", "height": 2, "width": 3, "tokens": 7}),
                    image(Some(7)).into(),
                ),
                (
                    json!({"dmel": "AAEF", "type": null}),
                    Dmel::new([0, 1, 5]).unwrap().into(),
                ),
            ];
            for (body, expected) in cases {
                assert_eq!(read(body.clone()).unwrap().chunks(), [expected], "{body}");
            }
        }

        #[test]
        fn a_bad_chunk_is_named_by_its_index_and_member() {
            let cases = [
                (json!({"type": "video"}), "chunks[0]: unknown type `video`"),
                (json!({}), "chunks[0]: no `type`"),
                (
                    json!({"type": "image", "format": "png"}),
                    "`data` is missing",
                ),
                (json!({"data": "AQ=="}), "`format` is missing"),
                (json!({"data": "!", "format": "png"}), "not base64"),
                (json!({"tokens": [2147483648_u32]}), "2^31 - 1"),
            ];
            for (body, expected) in cases {
                let error = read(body.clone()).unwrap_err().to_string();
                assert!(error.contains(expected), "{body}: {error}");
            }
        }
    }
}
