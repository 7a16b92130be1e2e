//! What the rollout log costs: writing, reading, analysing. `cargo bench --bench log`: 100,000 drawn rollouts, once as short as the
//! demo's and once of 200 tokens; processor time of one thread, beside arrow-rs with its defaults in the same run.
//!
//! `benches/peers/log.py` calls the parts by name, each prints a JSON object:
//!
//! | arguments | what is done |
//! |---|---|
//! | `make FOLDER ROWS TOKENS` | a run's folder of drawn rollouts, compacted |
//! | `write FILE OUT` | the rows of a file of the log, written anew as one step |
//! | `read FILE` | a file of the log, read to rollouts, and to columns alone |
//! | `encodings FILE...` | every column of real rollouts by itself, in each encoding that may serve |

#[path = "log/drawn.rs"]
mod drawn;
#[path = "log/encodings.rs"]
mod encodings;

use arrow::array::RecordBatch;
use drawn::Drawn;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tidegate::store::layout::LogFile;
use tidegate::store::{FooterInfo, Limits, LogReader, ParquetLog, RunFolder, compact};
use tidegate_operators::record::{Metrics, Rollout, SealedStep};
use tidegate_operators::seal::Log;

type Done<T = ()> = Result<T, Box<dyn Error>>;

/// Rows of a step where the log is drawn.
const STEP_ROWS: u64 = 512;
/// Rows of a file that is written and read by itself.
const FILE_ROWS: u64 = 10_240;

/// Nanoseconds of this thread on the processor.
pub fn processor_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// What `work` gave, and its nanoseconds on the processor.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let started = processor_ns();
    let made = std::hint::black_box(work());
    (made, processor_ns() - started)
}

fn info() -> FooterInfo {
    FooterInfo { spec: "seed = 1\n[schedule]\nkind = \"pipeline\"\nmax_lag = 4\n".into(), ..FooterInfo::default() }
}

fn log(folder: &RunFolder) -> ParquetLog {
    ParquetLog::new(folder.clone(), info())
}

fn sealed(step: u64, rollouts: Vec<Rollout>) -> SealedStep {
    let finished_ns = rollouts.iter().map(|row| row.trained_ns).max().unwrap_or(0);
    SealedStep { step, rollouts, metrics: Some(Metrics { step, finished_ns, ..Metrics::default() }) }
}

/// A run of so many drawn rollouts, of `tokens` tokens on average; files of steps are merged as they are after a checkpoint.
fn make(path: &Path, rows: u64, tokens: u64) -> Done {
    let folder = RunFolder::create(path)?;
    folder.write_spec(&info().spec)?;
    let (mut log, mut drawn) = (log(&folder), Drawn::new(tokens));
    let steps = rows.div_ceil(STEP_ROWS);
    let mut made = (0, 0);
    for step in 1..=steps {
        let now = STEP_ROWS.min(rows - made.0);
        let rollouts = drawn.step(step, now);
        made = (made.0 + now, made.1 + rollouts.iter().map(|row| row.tokens.len()).sum::<usize>());
        log.seal(sealed(step, rollouts))?;
        if step % 100 == 0 || step == steps {
            compact(&folder, step, &Limits::default())?;
        }
    }
    let bytes = folder.log_files()?.into_iter().map(|file| Ok(fs::metadata(folder.log_file(file))?.len()));
    let bytes: u64 = bytes.collect::<Done<Vec<u64>>>()?.iter().sum();
    println!("{}", serde_json::json!({"rows": made.0, "tokens": made.1, "bytes": bytes}));
    Ok(())
}

/// All rollouts of a file, and nanoseconds.
fn read(path: &Path) -> Done<(Vec<Rollout>, f64)> {
    let (rows, ns) = timed(|| -> tidegate::error::Result<Vec<Rollout>> {
        let mut log = LogReader::of_file(path)?;
        let mut rows = Vec::new();
        for part in log.parts() {
            rows.append(&mut log.read(part)?.rollouts);
        }
        Ok(rows)
    });
    Ok((rows?, ns))
}

/// All columns of a file, as they are kept before rollouts are made of them: how many rows, and nanoseconds.
fn columns(path: &Path) -> Done<(usize, f64)> {
    let (batches, ns) = timed(|| -> Done<Vec<RecordBatch>> {
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?.with_batch_size(2048).build()?;
        Ok(reader.collect::<Result<Vec<_>, _>>()?)
    });
    Ok((batches?.iter().map(RecordBatch::num_rows).sum(), ns))
}

/// Writes rows as one step into a new run's folder; the file, and nanoseconds.
fn write(folder: &Path, rows: Vec<Rollout>) -> Done<(PathBuf, f64)> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let folder = RunFolder::create(folder)?;
    let mut log = log(&folder);
    let step = sealed(1, rows);
    let (done, ns) = timed(|| log.seal(step));
    done?;
    Ok((folder.log_file(LogFile::Step(1)), ns))
}

/// The same with arrow-rs alone, its defaults and zstd: bytes, nanoseconds to write and to read. From columns to columns, which spares it
/// the rollouts.
fn plain(file: &Path, copy: &Path) -> Done<[f64; 3]> {
    let batches = || -> Done<Vec<RecordBatch>> {
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(file)?)?.with_batch_size(256).build()?;
        Ok(reader.collect::<Result<Vec<_>, _>>()?)
    };
    let batches = batches()?;
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
    let (done, write_ns) = timed(|| -> Done {
        let mut writer = ArrowWriter::try_new(File::create(copy)?, batches[0].schema(), Some(properties))?;
        batches.iter().try_for_each(|batch| writer.write(batch))?;
        writer.close()?;
        Ok(())
    });
    done?;
    let (done, read_ns) = timed(|| -> Done<usize> {
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(copy)?)?.with_batch_size(256).build()?;
        Ok(reader.map(|batch| batch.map(|batch| batch.num_rows())).sum::<Result<usize, _>>()?)
    });
    done?;
    Ok([fs::metadata(copy)?.len() as f64, write_ns, read_ns])
}

/// `rows` rollouts, a file of them after the other.
fn report(rows: u64, tokens: u64) -> Done {
    let place = tempfile::tempdir()?;
    let mut drawn = Drawn::new(tokens);
    let (mut sampled, mut ours, mut theirs) = (0, [0.0; 3], [0.0; 3]);
    for step in 1..=rows.div_ceil(FILE_ROWS) {
        let rollouts = drawn.step(step, FILE_ROWS.min(rows - (step - 1) * FILE_ROWS));
        sampled += rollouts.iter().map(|row| row.tokens.len()).sum::<usize>();
        let (file, write_ns) = write(&place.path().join("run"), rollouts.clone())?;
        let (again, read_ns) = read(&file)?;
        assert_eq!(again, rollouts, "what was read is not what was written");
        add(&mut ours, [fs::metadata(&file)?.len() as f64, write_ns, read_ns]);
        add(&mut theirs, plain(&file, &place.path().join("plain.parquet"))?);
    }
    println!("{rows} rollouts, {:.1} tokens each", sampled as f64 / rows as f64);
    let [bytes, write_ns, read_ns] = ours.map(|sum| sum / rows as f64);
    let [smaller, writes, reads] = std::array::from_fn(|i| ours[i] / theirs[i]);
    println!("  size   {bytes:>9.1} bytes a rollout             {smaller:.2} of arrow-rs with its defaults");
    println!("  write  {:>9.0} rollouts/s on one thread   {writes:.2} of arrow-rs's time", 1e9 / write_ns);
    println!(
        "  read   {:>9.0} rollouts/s on one thread   {reads:.2} of arrow-rs's time, which makes no rollouts",
        1e9 / read_ns
    );
    Ok(())
}

fn add(sums: &mut [f64; 3], now: [f64; 3]) {
    sums.iter_mut().zip(now).for_each(|(sum, now)| *sum += now);
}

fn main() -> Done {
    // What `cargo bench` adds for a harness.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => report(100_000, 32).and_then(|()| report(100_000, 200)),
        ["make", folder, rows, tokens] => make(Path::new(folder), rows.parse()?, tokens.parse()?),
        ["write", file, out] => {
            let (rows, _) = read(Path::new(file))?;
            let count = rows.len();
            // The first time is for a process that is warm, as that is which calls pyarrow.
            write(Path::new(out), rows.clone())?;
            let (file, ns) = write(Path::new(out), rows)?;
            let bytes = fs::metadata(&file)?.len();
            println!("{}", serde_json::json!({"rows": count, "bytes": bytes, "ns": ns, "file": file}));
            Ok(())
        }
        ["read", file] => {
            // The first time is for a process that is warm.
            read(Path::new(file))?;
            let (rows, ns) = read(Path::new(file))?;
            columns(Path::new(file))?;
            let (again, columns_ns) = columns(Path::new(file))?;
            assert_eq!(again, rows.len());
            println!("{}", serde_json::json!({"rows": again, "ns": ns, "columns_ns": columns_ns}));
            Ok(())
        }
        ["encodings", ref files @ ..] if !files.is_empty() => encodings::table(files),
        _ => Err("see the head of benches/log.rs for what may be asked".into()),
    }
}
