//! Each crate that a build may take in has a licence that `deny.toml` allows, and stands in `docs/licences.md`: a new one is
//! looked at before it lands.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Names of crates by licence, this project's own left out.
fn crates() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version", "1", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut crates: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in metadata["packages"].as_array().unwrap().iter().filter(|package| !package["source"].is_null()) {
        let licence = package["license"].as_str().unwrap_or("none").replace('/', " OR ").replace("  ", " ");
        crates.entry(licence).or_default().insert(package["name"].as_str().unwrap().to_owned());
    }
    crates
}

fn allowed() -> BTreeSet<String> {
    let deny: toml::Table = fs::read_to_string(root().join("deny.toml")).unwrap().parse().unwrap();
    deny["licenses"]["allow"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// Whether an SPDX expression can be met with the licences in `allowed`: AND binds more strongly than OR.
fn is_met(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace(" WITH ", "_WITH_");
    let mut words = spaced.split_whitespace().peekable();
    any(&mut words, allowed)
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut met = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= all(words, allowed);
    }
    met
}

fn all(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut met = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    match words.next() {
        Some("(") => {
            let met = any(words, allowed);
            words.next_if_eq(&")").is_some() && met
        }
        name => name.is_some_and(|name| allowed.contains(&name.replace("_WITH_", " WITH "))),
    }
}

/// The page as it should be.
fn page(crates: &BTreeMap<String, BTreeSet<String>>) -> String {
    let mut page = "# Licences\n\n\
        Every crate that a build of tidegate may take in, on any system, by the licence that it names. Those of which one may be chosen\n\
        are met by the list in `deny.toml`. libtorch, which is linked and not part of this, is under BSD-3-Clause.\n\n\
        | licence | crates |\n|---|---|\n"
        .to_owned();
    for (licence, names) in crates {
        page += &format!("| {licence} | {} |\n", names.iter().cloned().collect::<Vec<_>>().join(", "));
    }
    page += "\n## Scripts\n\nPages of `tidegate analyze --html` hold these, as their packages on npm have them; the licence's text is beside each.\n\n\
        | script | package | licence |\n|---|---|---|\n";
    for script in SCRIPTS {
        page += &format!("| `{ASSETS}/{}` | {} {} | {} |\n", script.file, script.package, script.version, script.licence);
    }
    page
}

/// A script of another project, unchanged.
struct Script {
    file: &'static str,
    package: &'static str,
    version: &'static str,
    licence: &'static str,
    /// First 16 hexadecimal digits of BLAKE3 over it.
    hash: &'static str,
}

const ASSETS: &str = "src/jobs/report/assets";
const SCRIPTS: [Script; 2] = [
    Script { file: "d3.min.js", package: "d3", version: "7.9.2", licence: "ISC", hash: "0d7e62ece5eb9556" },
    Script {
        file: "plot.umd.min.js",
        package: "@observablehq/plot",
        version: "0.6.17",
        licence: "ISC",
        hash: "175868b527ef2255",
    },
];

/// Catches a script that was changed or replaced without its line here, and one whose licence was left behind.
#[test]
fn scripts_are_as_their_packages_have_them() {
    let allowed = allowed();
    for script in SCRIPTS {
        let text = fs::read_to_string(root().join(ASSETS).join(script.file)).unwrap();
        assert_eq!(blake3::hash(text.as_bytes()).to_hex()[..16], *script.hash, "{}", script.file);
        let banner = text.lines().next().unwrap();
        assert!(banner.contains(&format!("v{} Copyright", script.version)), "{banner}");
        let licence = fs::read_to_string(root().join(ASSETS).join(format!("{}.LICENSE", script.file))).unwrap();
        assert!(licence.starts_with("Copyright ") && allowed.contains(script.licence), "{}", script.file);
    }
}

#[test]
fn every_crate_has_an_allowed_licence() {
    let allowed = allowed();
    let wrong: Vec<_> = crates().into_iter().filter(|(licence, _)| !is_met(licence, &allowed)).collect();
    assert!(wrong.is_empty(), "no licence of deny.toml: {wrong:?}");
}

#[test]
fn every_crate_is_on_the_page() {
    let right = page(&crates());
    let found = fs::read_to_string(root().join("docs/licences.md")).unwrap_or_default();
    if found != right {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("licences.md");
        fs::write(&path, &right).unwrap();
        panic!("docs/licences.md is not the list of Cargo.lock: compare it with {}, and copy that", path.display());
    }
}

#[test]
fn expressions() {
    let allowed = BTreeSet::from(["MIT".to_owned(), "Zlib".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned()]);
    for (expression, met) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("MIT AND GPL-3.0", false),
        ("GPL-3.0 OR MIT AND Zlib", true),
        ("(GPL-3.0 OR MIT) AND Zlib", true),
        ("(GPL-3.0 OR MIT) AND BSL-1.0", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0", false),
        ("", false),
        ("(MIT", false),
        ("none", false),
    ] {
        assert_eq!(is_met(expression, &allowed), met, "{expression}");
    }
}
