//! What a session did and when, as a trace that Perfetto shows.
//!
//! The file is a sequence of `TracePacket` messages. Every run and sampler has a track, and as many
//! more as it had requests at the same time; a request is a slice of its kind behind one called
//! `queued`. There are so few fields that they are written here by hand, by the numbers that Perfetto's
//! `trace_packet.proto`, `track_event.proto` and `track_descriptor.proto` give them.

use std::collections::BTreeMap;

/// A request from its acceptance to its end, in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) request: String,
    pub(crate) kind: String,
    /// The run or sampler.
    pub(crate) subject: String,
    pub(crate) seq_id: Option<i64>,
    /// What its result is.
    pub(crate) outcome: String,
    pub(crate) accepted: i64,
    pub(crate) started: i64,
    pub(crate) ended: i64,
}

/// Any number but zero: all packets come from one writer.
const WRITER: u64 = 1;
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;

/// Writes a trace of these requests, which have to be sorted by the time of their acceptance.
pub(crate) fn encode(spans: &[Span]) -> Vec<u8> {
    let mut trace = Vec::new();
    // For each subject, the tracks with the time from which each is free.
    let mut tracks = BTreeMap::<&str, Vec<(u64, i64)>>::new();
    let mut next_track = 1;
    for span in spans {
        let lanes = tracks.entry(&span.subject).or_default();
        let free = lanes.iter_mut().find(|(_, until)| *until <= span.accepted);
        let track = match free {
            Some((track, until)) => {
                *until = span.ended;
                *track
            }
            None => {
                let track = next_track;
                next_track += 1;
                lanes.push((track, span.ended));
                describe(&mut trace, track, &span.subject);
                track
            }
        };
        if span.started > span.accepted {
            begin(&mut trace, track, span.accepted, "queued", &[]);
            end(&mut trace, track, span.started);
        }
        let seq_id = span.seq_id.map(|seq_id| seq_id.to_string());
        let notes = [
            ("request_id", Some(span.request.as_str())),
            ("seq_id", seq_id.as_deref()),
            ("outcome", Some(span.outcome.as_str())),
        ];
        begin(&mut trace, track, span.started, &span.kind, &notes);
        end(&mut trace, track, span.ended);
    }
    trace
}

fn describe(trace: &mut Vec<u8>, track: u64, name: &str) {
    let mut descriptor = Vec::new();
    varint_field(&mut descriptor, 1, track);
    bytes_field(&mut descriptor, 2, name.as_bytes());
    let mut packet = Vec::new();
    bytes_field(&mut packet, 60, &descriptor);
    varint_field(&mut packet, 10, WRITER);
    bytes_field(trace, 1, &packet);
}

fn begin(trace: &mut Vec<u8>, track: u64, at: i64, name: &str, notes: &[(&str, Option<&str>)]) {
    let mut event = Vec::new();
    for (note, value) in notes {
        if let Some(value) = value {
            let mut annotation = Vec::new();
            bytes_field(&mut annotation, 6, value.as_bytes());
            bytes_field(&mut annotation, 10, note.as_bytes());
            bytes_field(&mut event, 4, &annotation);
        }
    }
    varint_field(&mut event, 9, SLICE_BEGIN);
    varint_field(&mut event, 11, track);
    bytes_field(&mut event, 22, b"request");
    bytes_field(&mut event, 23, name.as_bytes());
    push(trace, at, &event);
}

fn end(trace: &mut Vec<u8>, track: u64, at: i64) {
    let mut event = Vec::new();
    varint_field(&mut event, 9, SLICE_END);
    varint_field(&mut event, 11, track);
    push(trace, at, &event);
}

fn push(trace: &mut Vec<u8>, at: i64, event: &[u8]) {
    let nanoseconds = at.saturating_mul(1_000_000).cast_unsigned();
    let mut packet = Vec::new();
    varint_field(&mut packet, 8, nanoseconds);
    varint_field(&mut packet, 10, WRITER);
    bytes_field(&mut packet, 11, event);
    bytes_field(trace, 1, &packet);
}

fn varint_field(message: &mut Vec<u8>, field: u64, value: u64) {
    varint(message, field << 3);
    varint(message, value);
}

fn bytes_field(message: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(message, field << 3 | 2);
    varint(message, bytes.len() as u64);
    message.extend_from_slice(bytes);
}

fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push((value as u8) | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(subject: &str, accepted: i64, started: i64, ended: i64) -> Span {
        Span {
            request: "1-2-a".to_owned(),
            kind: "sample".to_owned(),
            subject: subject.to_owned(),
            seq_id: Some(7),
            outcome: "sample".to_owned(),
            accepted,
            started,
            ended,
        }
    }

    fn count(trace: &[u8], text: &str) -> usize {
        let windows = trace.windows(text.len());
        windows.filter(|window| *window == text.as_bytes()).count()
    }

    #[test]
    fn requests_at_the_same_time_have_tracks_of_their_own() {
        let spans = [
            span("a", 0, 1, 10),
            span("a", 5, 10, 20),
            span("a", 10, 10, 12),
            span("b", 11, 11, 12),
        ];
        let trace = encode(&spans);
        // The third goes where the first has ended.
        assert_eq!(count(&trace, "\x12\x01a"), 2, "tracks of a");
        assert_eq!(count(&trace, "\x12\x01b"), 1, "tracks of b");
        assert_eq!(count(&trace, "queued"), 2);
        assert_eq!(count(&trace, "sample"), 8, "a name and an outcome each");
    }

    #[test]
    fn a_packet_has_the_bytes_that_perfetto_reads() {
        let mut trace = Vec::new();
        end(&mut trace, 300, 1);
        let packet = [
            0x40, 0xc0, 0x84, 0x3d, 0x50, 1, 0x5a, 5, 0x48, 2, 0x58, 0xac, 0x02,
        ];
        assert_eq!(trace, [&[0x0a, 13][..], &packet].concat());
    }
}
