//! Checks that libtorch is there and of the right version, puts its folders on the run path of whatever is linked, and compiles the
//! operations that its bindings lack.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::exit;

/// How the version of the libtorch that the `tch` of Cargo.toml is written for begins.
const VERSION: &str = "2.11.";

const REMEDY: &str = "run `make libtorch`, or set LIBTORCH to the folder of a libtorch 2.11";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    let Some(libtorch) = env::var_os("LIBTORCH").filter(|dir| !dir.is_empty()).map(PathBuf::from) else {
        fail(&format!("LIBTORCH is not set: {REMEDY}"))
    };
    if !libtorch.join("lib").is_dir() {
        fail(&format!("no libtorch in LIBTORCH={}: {REMEDY}", libtorch.display()));
    }
    match version(&libtorch) {
        Some(found) if !found.starts_with(VERSION) => {
            let what = format!("libtorch in LIBTORCH={} is of version {found}", libtorch.display());
            fail(&format!("{what}: {REMEDY}"))
        }
        _ => {}
    }
    for folder in run_path(&libtorch) {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{}", folder.display());
    }
    compile(&libtorch);
}

/// `src/engine/torch/ops`, against libtorch's headers. Sums may be taken in any order, which is what lets them be vectors; what is
/// not a number or infinite counts.
fn compile(libtorch: &Path) {
    const FOLDER: &str = "src/engine/torch/ops";
    println!("cargo::rerun-if-changed={FOLDER}");
    let include = libtorch.join("include");
    let abi = env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".to_owned());
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .opt_level(3)
        .debug(false)
        .flag("-isystem")
        .flag(&include)
        .flag("-isystem")
        .flag(include.join("torch/csrc/api/include"))
        .define("_GLIBCXX_USE_CXX11_ABI", abi.as_str())
        .file(format!("{FOLDER}/ops.cpp"));
    for flag in ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno", "-Wno-psabi"] {
        build.flag(flag);
    }
    // Loops are shared out by the threads that libtorch has, which are those of GNU's OpenMP; another's would be threads beside them.
    if build.get_compiler().is_like_gnu() {
        build.flag("-fopenmp");
        let theirs = libtorch.join("lib/libgomp.so.1");
        let library = if theirs.exists() { theirs.display().to_string() } else { "-lgomp".to_owned() };
        println!("cargo::rustc-link-arg={library}");
        println!("cargo::rustc-env=TIDEGATE_OPS_THREADS=libtorch");
    } else {
        println!("cargo::warning=no GNU compiler: the operations of {FOLDER} run on one thread");
        println!("cargo::rustc-env=TIDEGATE_OPS_THREADS=one");
    }
    build.compile("tidegate_ops");
}

/// One message for a person; cargo shows it and stops.
fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    exit(1);
}

/// What `build-version` (the archive of libtorch) or `version.py` (the Python package) says.
fn version(libtorch: &Path) -> Option<String> {
    let (archive, package) = (libtorch.join("build-version"), libtorch.join("version.py"));
    for file in [&archive, &package].into_iter().filter(|file| file.exists()) {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    if let Ok(text) = fs::read_to_string(archive) {
        return Some(text.trim().to_owned());
    }
    let text = fs::read_to_string(package).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?;
    Some(line.trim_matches(['\'', '"']).to_owned())
}

/// libtorch's own libraries, and those of the CUDA packages that pip puts beside it.
fn run_path(libtorch: &Path) -> Vec<PathBuf> {
    let mut folders = vec![libtorch.join("lib")];
    let packages = libtorch.parent().and_then(|site| fs::read_dir(site.join("nvidia")).ok());
    let mut beside = packages.into_iter().flatten().flatten().map(|entry| entry.path().join("lib")).collect::<Vec<_>>();
    beside.sort();
    folders.extend(beside.into_iter().filter(|folder| folder.is_dir()));
    folders
}
