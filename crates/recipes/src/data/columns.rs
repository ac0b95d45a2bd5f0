//! Rows of files that are columns, Parquet and Arrow, each as the text of a JSON object.
//!
//! A batch of rows is in memory at a time. A member that is null is left out: a table has every column in every
//! row. The libraries below check what they read, and what they miss and panic over is an error here.

use super::format::Layout;
use super::place::Place;
use crate::Error;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Date64Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_ipc::reader::StreamReader;
use arrow_schema::{DataType, TimeUnit};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::cell::Cell;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Once};
use tinkrs_chat::Json;

/// Rows in memory at a time, of a Parquet file. An Arrow file has them in batches of its own.
const BATCH: usize = 256;
/// No description of an Arrow batch is longer.
const LONGEST_MESSAGE: u64 = 64 << 20;
/// How deep lists and structs may be in each other.
const DEEPEST: usize = 32;

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, String>>>;

/// The rows of a file.
pub(super) struct ColumnRows {
    path: Arc<Path>,
    batches: Batches,
    batch: Option<(RecordBatch, usize)>,
    /// How many rows were read.
    read: usize,
    done: bool,
}

impl ColumnRows {
    pub(super) fn open(path: &Path, layout: Layout) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::file("read", path))?;
        let open = || match layout {
            Layout::Parquet => parquet(file),
            _ => arrow(file),
        };
        let batches = guarded(open).map_err(|problem| Error::Data {
            path: path.to_owned(),
            message: format!("not {layout} that can be read: {problem}"),
        })?;
        Ok(Self {
            path: path.into(),
            batches,
            batch: None,
            read: 0,
            done: false,
        })
    }

    fn row(&mut self) -> Result<Option<String>, String> {
        loop {
            if let Some((batch, next)) = &mut self.batch
                && *next < batch.num_rows()
            {
                let row = *next;
                *next += 1;
                return guarded(|| object(batch, row)).map(|row| Some(row.to_string()));
            }
            let batches = &mut self.batches;
            self.batch = match guarded(|| batches.next().transpose())? {
                Some(batch) => Some((batch, 0)),
                None => return Ok(None),
            };
        }
    }
}

impl Iterator for ColumnRows {
    type Item = Result<(Place, String), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        self.read += 1;
        let place = Place::row(Arc::clone(&self.path), self.read);
        match self.row() {
            Ok(Some(text)) => Some(Ok((place, text))),
            Ok(None) => {
                self.done = true;
                None
            }
            Err(message) => {
                self.done = true;
                Some(Err(Error::Row { place, message }))
            }
        }
    }
}

thread_local! {
    /// Whether a panic on this thread is about a file that is read, which is told as an error.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Calls what reads a file that others have made, and which may be broken. A panic over it is an error, and none of
/// the messages that panics have.
fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_GUARDED.get() {
                usual(panic);
            }
        }));
    });
    let was = IS_GUARDED.replace(true);
    let called = catch_unwind(AssertUnwindSafe(read));
    IS_GUARDED.set(was);
    called.unwrap_or_else(|_| Err("the file is damaged".to_owned()))
}

fn parquet(file: File) -> Result<Batches, String> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| e.to_string())?;
    let reader = reader.with_batch_size(BATCH).build();
    let reader = reader.map_err(|error| error.to_string())?;
    Ok(Box::new(
        reader.map(|batch| batch.map_err(|e| e.to_string())),
    ))
}

fn arrow(mut file: File) -> Result<Batches, String> {
    let start = check_messages(&mut file)?;
    file.seek(SeekFrom::Start(start))
        .map_err(|e| e.to_string())?;
    let reader = StreamReader::try_new(BufReader::new(file), None);
    let reader = reader.map_err(|error| error.to_string())?;
    Ok(Box::new(
        reader.map(|batch| batch.map_err(|e| e.to_string())),
    ))
}

/// Checks that what messages say of their length is in the file, before memory is taken for it. Returns where the
/// first one is: an Arrow file is a stream between two marks.
fn check_messages(file: &mut File) -> Result<u64, String> {
    let io = |error: std::io::Error| error.to_string();
    let length = file.metadata().map_err(io)?.len();
    let mut mark = [0; 8];
    let is_file = file.read_exact(&mut mark).is_ok() && mark.starts_with(b"ARROW1");
    let start = if is_file { 8 } else { 0 };
    let mut at = file.seek(SeekFrom::Start(start)).map_err(io)?;
    let cut = || "the file is cut short".to_owned();
    while at < length {
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix).map_err(|_| cut())?;
        let [a, b, c, d, rest @ ..] = prefix;
        if [a, b, c, d] != [0xff; 4] {
            return Err("it is no Arrow stream of today".to_owned());
        }
        let metadata = u64::from(u32::from_le_bytes(rest));
        if metadata == 0 {
            return Ok(start);
        }
        if metadata > LONGEST_MESSAGE || at + 8 + metadata > length {
            return Err(cut());
        }
        let mut bytes = vec![0; metadata as usize];
        file.read_exact(&mut bytes).map_err(|_| cut())?;
        let message = arrow_ipc::root_as_message(&bytes).map_err(|error| error.to_string())?;
        let body = u64::try_from(message.bodyLength()).map_err(|_| cut())?;
        at = (at + 8 + metadata).checked_add(body).ok_or_else(cut)?;
        if at > length {
            return Err(cut());
        }
        file.seek(SeekFrom::Start(at)).map_err(io)?;
    }
    Ok(start)
}

fn object(batch: &RecordBatch, row: usize) -> Result<Json, String> {
    let schema = batch.schema_ref();
    let columns = schema.fields().iter().zip(batch.columns());
    members(
        columns.map(|(field, column)| (field.name(), column)),
        row,
        0,
    )
}

fn members<'a>(
    columns: impl Iterator<Item = (&'a String, &'a ArrayRef)>,
    row: usize,
    depth: usize,
) -> Result<Json, String> {
    let mut object = Vec::new();
    for (name, column) in columns {
        let value = value(column, row, depth + 1);
        match value.map_err(|problem| format!("`{name}`: {problem}"))? {
            Json::Null => {}
            value => object.push((name.clone(), value)),
        }
    }
    Ok(Json::Object(object))
}

fn list(values: &ArrayRef, depth: usize) -> Result<Json, String> {
    let values = (0..values.len()).map(|row| value(values, row, depth + 1));
    Ok(Json::List(values.collect::<Result<_, _>>()?))
}

fn number<T>(column: &ArrayRef, row: usize) -> Json
where
    T: ArrowPrimitiveType,
    serde_json::Value: From<T::Native>,
{
    // What is not a finite number has no place in JSON.
    match serde_json::Value::from(column.as_primitive::<T>().value(row)) {
        serde_json::Value::Number(number) => Json::Number(number),
        _ => Json::Null,
    }
}

fn bytes(bytes: &[u8]) -> Result<Json, String> {
    // Some writers do not say which columns are text.
    let text = std::str::from_utf8(bytes).map_err(|_| "bytes that are no text".to_owned());
    text.map(Json::from)
}

fn value(column: &ArrayRef, row: usize, depth: usize) -> Result<Json, String> {
    if depth > DEEPEST {
        return Err(format!(
            "more than {DEEPEST} lists or structs in each other"
        ));
    }
    if column.is_null(row) {
        return Ok(Json::Null);
    }
    Ok(match column.data_type() {
        DataType::Null => Json::Null,
        DataType::Utf8 => Json::from(column.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Json::from(column.as_string::<i64>().value(row)),
        DataType::Utf8View => Json::from(column.as_string_view().value(row)),
        // An image among the columns is no reason to refuse the rest.
        DataType::Binary => bytes(column.as_binary::<i32>().value(row)).unwrap_or_default(),
        DataType::LargeBinary => bytes(column.as_binary::<i64>().value(row)).unwrap_or_default(),
        DataType::BinaryView => bytes(column.as_binary_view().value(row)).unwrap_or_default(),
        DataType::Boolean => Json::Bool(column.as_boolean().value(row)),
        DataType::Int8 => number::<Int8Type>(column, row),
        DataType::Int16 => number::<Int16Type>(column, row),
        DataType::Int32 => number::<Int32Type>(column, row),
        DataType::Int64 => number::<Int64Type>(column, row),
        DataType::UInt8 => number::<UInt8Type>(column, row),
        DataType::UInt16 => number::<UInt16Type>(column, row),
        DataType::UInt32 => number::<UInt32Type>(column, row),
        DataType::UInt64 => number::<UInt64Type>(column, row),
        DataType::Float32 => number::<Float32Type>(column, row),
        DataType::Float64 => number::<Float64Type>(column, row),
        DataType::Date32 => number::<Date32Type>(column, row),
        DataType::Date64 => number::<Date64Type>(column, row),
        DataType::Timestamp(unit, _) => match unit {
            TimeUnit::Second => number::<TimestampSecondType>(column, row),
            TimeUnit::Millisecond => number::<TimestampMillisecondType>(column, row),
            TimeUnit::Microsecond => number::<TimestampMicrosecondType>(column, row),
            TimeUnit::Nanosecond => number::<TimestampNanosecondType>(column, row),
        },
        DataType::List(_) => list(&column.as_list::<i32>().value(row), depth)?,
        DataType::LargeList(_) => list(&column.as_list::<i64>().value(row), depth)?,
        DataType::FixedSizeList(..) => list(&column.as_fixed_size_list().value(row), depth)?,
        DataType::Struct(fields) => {
            let names = fields.iter().map(|field| field.name());
            let columns = names.zip(column.as_struct().columns());
            members(columns, row, depth)?
        }
        DataType::Dictionary(..) => {
            let dictionary = column.as_any_dictionary();
            let key = dictionary.normalized_keys()[row];
            value(dictionary.values(), key, depth + 1)?
        }
        DataType::Map(..) => {
            let entries = column.as_map().value(row);
            let (keys, values) = (entries.column(0), entries.column(1));
            let mut object = Vec::new();
            for row in 0..entries.len() {
                let key = match value(keys, row, depth + 1)? {
                    Json::Text(key) => key,
                    key => key.to_string(),
                };
                object.push((key, value(values, row, depth + 1)?));
            }
            Json::Object(object)
        }
        other => return Err(format!("values of the type {other} cannot be read")),
    })
}
