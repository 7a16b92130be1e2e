//! `tidegate analyze`: its numbers against the test's own, damaged files, readers that leave.

use crate::harness::{STEPS, command, copy, lags, max_lag, recorded, recorded_path, steps, tidegate};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use tempfile::tempdir;
use tidegate::engine::tokenizer::SPECIAL;
use tidegate::store::RunFolder;
use tidegate::store::layout::LogFile;

fn analyze(args: &[&str]) -> crate::harness::Ran {
    tidegate(Path::new("/"), &["analyze"].into_iter().chain(args.iter().copied()).collect::<Vec<_>>())
}

/// Catches lags counted over tokens that were not trained, or from another step than the row's.
#[test]
fn lags_are_those_of_the_log() {
    let ran = analyze(&[recorded_path(), "--json"]).ok();
    assert_eq!(ran.err, "");
    let json = ran.json();
    let run = &json["runs"][0];
    let all: Vec<i64> = steps(&recorded().folder).iter().flat_map(|file| &file.rollouts).flat_map(lags).collect();
    let mean = all.iter().sum::<i64>() as f64 / all.len() as f64;
    assert_eq!(run["lag"]["max"].as_i64(), Some(max_lag(&recorded().folder)));
    assert!((run["lag"]["mean"].as_f64().unwrap() - mean).abs() < 1e-9, "{} {mean}", run["lag"]["mean"]);
    assert_eq!((run["lag"]["bound"].as_u64(), run["lag"]["broken"].as_u64()), (Some(1), Some(0)));
    assert_eq!((run["first_step"].as_u64(), run["last_step"].as_u64()), (Some(1), Some(STEPS)));
    assert_eq!(run["statuses"]["trained"], 96);
}

/// Catches a report that fails on a real run, and one that forgets a run.
#[test]
fn runs_are_said_one_after_the_other() {
    let file = recorded().folder.log_file(LogFile::Step(2));
    let ran = analyze(&[recorded_path(), file.to_str().unwrap()]).ok();
    assert!(ran.out.starts_with(&format!("{}: steps 1 to 6, ", recorded_path())), "{}", ran.out);
    assert!(ran.out.contains(&format!("{}: steps 2 to 2, 1 files read, 0 skipped\n", file.display())), "{}", ran.out);
    assert!(ran.out.contains("  mean ") && ran.out.contains(", max 1, bound 1\n"), "{}", ran.out);
}

/// Catches half a file that is read as a whole one, or that takes the others down with it.
#[test]
fn half_a_file_is_named_and_may_be_skipped() {
    let dir = tempdir().unwrap();
    copy(recorded().folder.path(), dir.path());
    let folder = RunFolder::view(dir.path()).unwrap();
    let path = folder.log_file(LogFile::Step(3));
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let run = dir.path().to_str().unwrap();
    analyze(&[run]).refused(1, &["step-00000003.parquet: "]);
    let ran = analyze(&[run, "--skip-bad"]).ok();
    assert!(ran.out.contains(" 1 skipped\n  skipped: ") && ran.out.contains("step-00000003.parquet: "), "{}", ran.out);
    let files = analyze(&[run, "--skip-bad", "--json"]).ok().json()["runs"][0]["files"].clone();
    assert_eq!(files["skipped"], 1);
    assert_eq!(files["read"].as_u64().unwrap(), folder.log_files().unwrap().len() as u64 - 1);
}

/// Catches a panic where a reader has read enough (`| head`).
#[test]
fn a_reader_may_leave() {
    for read in [0, 10] {
        let args = ["analyze", recorded_path(), recorded_path(), "--json"];
        let mut child = command(Path::new("/"), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut vec![0; read]).unwrap();
        drop(out);
        let ran = child.wait_with_output().unwrap();
        assert_eq!((ran.status.code(), String::from_utf8(ran.stderr).unwrap().as_str()), (Some(0), ""));
    }
}

#[test]
fn what_is_no_run_is_refused() {
    analyze(&["/nothing"]).refused(1, &["/nothing: there is no such folder"]);
    assert_eq!(analyze(&[]).code, 2);
}

/// Catches a file that stands under another step's name and counts twice.
#[test]
fn a_file_under_another_name_is_named() {
    let dir = tempdir().unwrap();
    copy(Path::new(recorded_path()), dir.path());
    let folder = RunFolder::view(dir.path()).unwrap();
    fs::copy(folder.log_file(LogFile::Step(2)), folder.log_file(LogFile::Step(9))).unwrap();
    let path = folder.path().to_str().unwrap();
    analyze(&[path]).refused(1, &["step-00000009.parquet: its footer says that it is of step 2"]);
    let ran = analyze(&[path, "--skip-bad"]).ok();
    assert!(ran.out.contains(&format!("{STEPS} files read, 1 skipped")), "{}", ran.out);
}

/// Catches a page in place of the report, one that other runs' tokens are shown in, and held-out success that nobody kept.
#[test]
fn a_page_is_written_beside_the_report() {
    let dir = tempdir().unwrap();
    let page = dir.path().join("page.html");
    let ran = analyze(&[recorded_path(), "--html", page.to_str().unwrap()]).ok();
    assert_eq!(ran.out, analyze(&[recorded_path()]).ok().out);
    assert!(ran.err.starts_with(&format!("page      {} (", page.display())), "{}", ran.err);
    let text = fs::read_to_string(&page).unwrap();
    let (_, rest) = text.split_once("id=\"data\">").unwrap();
    let data: serde_json::Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
    let run = &data["runs"][0];
    assert_eq!((run["last_step"].as_u64(), run["held_out"]["after"]["prompts"].as_u64()), (Some(STEPS), Some(24)));
    assert!(run["rollouts"]["without_text"].is_null(), "{}", run["rollouts"]["without_text"]);
    for shown in run["rollouts"]["shown"].as_array().unwrap() {
        let pieces = shown["pieces"].as_array().unwrap().iter().map(|piece| piece.as_str().unwrap());
        assert_eq!(pieces.filter(|piece| !SPECIAL.contains(piece)).collect::<String>(), shown["completion"]);
    }
    let nine: Vec<&str> = [recorded_path(); 9].into_iter().chain(["--html", "x.html"]).collect();
    analyze(&nine).refused(2, &["--html = x.html: a page compares 8 runs at most, not 9"]);
}
