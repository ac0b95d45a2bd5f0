use super::*;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use tempfile::TempDir;

/// Writes tar archives, malicious ones too.
#[derive(Default)]
struct Builder(Vec<u8>);

impl Builder {
    fn entry(self, name: &str, flag: u8, contents: &[u8]) -> Self {
        self.raw(name.as_bytes(), flag, contents.len() as u64, contents)
    }

    fn file(self, name: &str, contents: &[u8]) -> Self {
        self.entry(name, b'0', contents)
    }

    fn raw(mut self, name: &[u8], flag: u8, size: u64, contents: &[u8]) -> Self {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name);
        header[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        header[156] = flag;
        header[257..263].copy_from_slice(b"ustar\0");
        header[148..156].copy_from_slice(b"        ");
        let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.0.extend(header);
        self.0.extend(contents);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1_024, 0);
        self.0
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn unpack_within(
    bytes: &[u8],
    limits: &ExtractLimits,
) -> (Result<Downloaded, DownloadError>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive");
    fs::write(&archive, bytes).unwrap();
    let extracted = extract(&archive, &folder.path().join("out"), limits);
    (extracted, folder)
}

fn unpack(bytes: &[u8]) -> (Result<Downloaded, DownloadError>, TempDir) {
    unpack_within(bytes, &ExtractLimits::default())
}

#[tokio::test]
async fn files_and_folders_are_unpacked_compressed_or_not() {
    let large = vec![7; 100_000];
    let plain = Builder::default()
        .entry("./", b'5', b"")
        .entry("./sub/", b'5', b"")
        .file("./adapter_config.json", b"{}")
        .file("sub/deeper/weights.bin", &large)
        .file("empty", b"")
        .end();
    for bytes in [gzip(&plain), plain] {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("archive");
        fs::write(&archive, bytes).unwrap();
        let out = folder.path().join("out");
        let extracted = extract_archive(&archive, &out, &ExtractLimits::default()).await;
        assert_eq!(extracted.unwrap().size_bytes(), 100_002);
        assert_eq!(fs::read(out.join("adapter_config.json")).unwrap(), b"{}");
        assert_eq!(fs::read(out.join("sub/deeper/weights.bin")).unwrap(), large);
        assert_eq!(fs::read(out.join("empty")).unwrap(), b"");
    }
}

#[test]
fn long_names_are_read_in_both_forms() {
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(120));
    let record = format!(" path={long}\n");
    let record = format!("{}{record}", record.len() + 3);
    for (flag, extension) in [(b'x', record), (b'L', format!("{long}\0"))] {
        let bytes = Builder::default()
            .entry("extension", flag, extension.as_bytes())
            .file("short", b"x")
            .end();
        let (extracted, _folder) = unpack(&bytes);
        let files = extracted.unwrap().files;
        assert_eq!(files.keys().collect::<Vec<_>>(), [&long]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn archives_of_the_system_tool_are_read() {
    let folder = tempfile::tempdir().unwrap();
    // Too long for the short form of a name, in two pieces that the oldest long form can take.
    let name = format!("{}/{}", "m".repeat(90), "n".repeat(90));
    let inside = folder.path().join("in").join(&name);
    fs::create_dir_all(&inside).unwrap();
    fs::write(inside.join("x"), vec![1; 5_000]).unwrap();
    for format in ["gnu", "pax", "ustar"] {
        let archive = folder.path().join(format!("{format}.tgz"));
        let mut tar = std::process::Command::new("tar");
        let status = tar
            .args(["czf", archive.to_str().unwrap(), "--format", format, "-C"])
            .args([&folder.path().join("in"), Path::new(".")])
            .status();
        assert!(status.unwrap().success(), "{format}");
        let out = folder.path().join(format);
        let extracted = extract(&archive, &out, &ExtractLimits::default()).unwrap();
        assert_eq!(extracted.size_bytes(), 5_000, "{format}");
        assert!(out.join(&name).join("x").is_file(), "{format}");
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in [
        "../evil",
        "/evil",
        "a/../../evil",
        "..",
        "a\\..\\evil",
        "C:evil",
        "./../evil",
    ] {
        for flag in [b'0', b'5'] {
            let (extracted, folder) = unpack(&Builder::default().entry(name, flag, b"").end());
            let error = extracted.unwrap_err();
            assert!(
                matches!(error, DownloadError::UnsafeName { .. }),
                "{name}: {error}"
            );
            assert!(!folder.path().join("evil").exists(), "{name}");
        }
    }
}

#[test]
fn links_devices_and_files_with_holes_are_refused() {
    let holes = "22 GNU.sparse.major=1\n";
    let with_holes = Builder::default()
        .entry("extension", b'x', holes.as_bytes())
        .file("x", b"");
    let mut archives = vec![("holes".to_owned(), with_holes)];
    for flag in [b'1', b'2', b'3', b'4', b'6', b'S', b'D', b'?'] {
        let archive = Builder::default().entry("x", flag, b"");
        archives.push((char::from(flag).to_string(), archive));
    }
    for (what, archive) in archives {
        let (extracted, folder) = unpack(&archive.end());
        let error = extracted.unwrap_err();
        assert!(
            matches!(error, DownloadError::BadArchive { .. }),
            "{what}: {error}"
        );
        assert!(!folder.path().join("out/x").exists(), "{what}");
    }
}

#[test]
fn a_bomb_goes_off_at_the_limit() {
    let limits = ExtractLimits {
        max_total_bytes: 1_000_000,
        max_entries: 10,
    };
    let zeros = vec![0; 5_000_000];
    let large = Builder::default().file("x", &zeros).end();
    let many = (0..11).fold(Builder::default(), |archive, at| {
        archive.file(&format!("f{at}"), b"")
    });
    let header = Builder::default().entry("x", b'x', &zeros).end();
    let skipped = Builder::default().entry("x", b'g', &zeros).end();
    let after_the_end = [Builder::default().end(), zeros.clone()].concat();
    for (what, bytes) in [
        ("a large file", large),
        ("many files", many.end()),
        ("a large header", header),
        ("something large to skip", skipped),
        ("zeros after the end", after_the_end),
    ] {
        let (extracted, folder) = unpack_within(&gzip(&bytes), &limits);
        let error = extracted.unwrap_err();
        assert!(
            matches!(error, DownloadError::BadArchive { .. }),
            "{what}: {error}"
        );
        assert!(!folder.path().join("out/x").exists(), "{what}");
        assert!(!folder.path().join("out/x.part").exists(), "{what}");
    }
}

#[test]
fn a_header_that_would_fill_the_memory_is_refused_by_its_size() {
    for flag in [b'x', b'L'] {
        let header = vec![b'x'; 70_000];
        let archive = Builder::default().entry("x", flag, &header);
        let error = unpack(&archive.file("x", b"").end()).0.unwrap_err();
        assert!(error.to_string().contains("header is too long"), "{error}");
    }
}

#[test]
fn broken_archives_are_errors() {
    let good = Builder::default().file("x", &[1; 2_000]).end();
    let packed = gzip(&good);
    let mut wrong_sum = good.clone();
    wrong_sum[0] ^= 1;
    let mut wrong_crc = packed.clone();
    let at = wrong_crc.len() - 8;
    wrong_crc[at] ^= 1;
    let huge = Builder::default()
        .raw(b"x", b'0', 8_589_934_591, b"few")
        .end();
    let not_utf8 = Builder::default().raw(b"\xff\xfe", b'0', 0, b"").end();
    let bad_record = Builder::default().entry("x", b'x', b"99 path=x\n").end();
    let cases = [
        ("nothing", vec![]),
        ("not an archive", b"<html>not found</html>".repeat(50)),
        ("cut short", good[..1_000].to_vec()),
        ("no end", good[..good.len() - 1_024].to_vec()),
        (
            "compressed and cut short",
            packed[..packed.len() - 10].to_vec(),
        ),
        ("wrong checksum", wrong_sum),
        ("wrong checksum of the compressed form", wrong_crc),
        ("a size that is not there", huge),
        ("a name that is not UTF-8", not_utf8),
        ("a bad record", bad_record),
    ];
    for (what, bytes) in cases {
        let (extracted, folder) = unpack(&bytes);
        let error = extracted.unwrap_err();
        assert!(
            matches!(error, DownloadError::BadArchive { .. }),
            "{what}: {error}"
        );
        assert!(!folder.path().join("out/x.part").exists(), "{what}");
    }
}

#[cfg(unix)]
#[test]
fn a_link_that_is_already_there_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let (outside, out) = (folder.path().join("outside"), folder.path().join("out"));
    fs::create_dir_all(&outside).unwrap();
    fs::create_dir_all(&out).unwrap();
    std::os::unix::fs::symlink(&outside, out.join("sub")).unwrap();
    let archive = folder.path().join("archive");
    fs::write(&archive, Builder::default().file("sub/x", b"x").end()).unwrap();
    let error = extract(&archive, &out, &ExtractLimits::default()).unwrap_err();
    assert!(matches!(error, DownloadError::InTheWay { .. }), "{error}");
    assert!(!outside.join("x").exists());
}
