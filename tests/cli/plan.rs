//! `tidegate plan`: what it prints, what it refuses, and the page that it writes.

use crate::harness::{bundled_model, recorded_path, tidegate};
use std::fs;

/// The paper's case study, by formulas and by events. Catches a plan whose layouts, curves or delays do not reach what it prints.
#[test]
fn the_papers_case_study() {
    let dir = tempfile::tempdir().unwrap();
    let told = tidegate(dir.path(), &["plan", "--curve", "lag"]).ok().out;
    assert!(told.contains("128 accelerators, 128 rollouts a step, a lag of at most 133"), "{told}");
    let pays = "It pays: a pipeline trains 1.58 times the tokens of the conventional schedule at the same largest lag";
    assert!(told.contains(pays) && told.contains("largest lag"), "{told}");

    let plan = |args: &[&str]| tidegate(dir.path(), &[&["plan", "--json", "--simulate"], args].concat()).ok().json();
    let tokens = |plan: &serde_json::Value| plan["pipeline"]["simulated"]["tokens"].as_f64().unwrap();
    let plain = plan(&[]);
    assert!((tokens(&plain) / plain["pipeline"]["tokens"].as_f64().unwrap() - 1.0).abs() < 0.05, "{plain}");
    assert!(plain["pipeline"]["simulated"]["max_lag"].as_u64().unwrap() <= 133);
    let slow = plan(&["--transfer", "2000", "--group-size", "4"]);
    assert!(tokens(&slow) < 0.9 * tokens(&plain), "{slow}");
    assert_eq!((&slow["simulated"]["group_size"], &slow["simulated"]["transfer"]), (&4.into(), &2000.0.into()));
    assert!(tokens(&plan(&["--checkpoint", "40000,10"])) < 0.8 * tokens(&plain));

    tidegate(dir.path(), &["plan", "-n", "8", "--html", "plan.html"]).ok();
    assert!(fs::read_to_string(dir.path().join("plan.html")).unwrap().contains("Plan for 8 accelerators"));
}

#[test]
fn what_no_plan_can_have_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (args, parts) in [
        (&["-n", "1"][..], &["--accelerators = 1: from 2 to 100000"][..]),
        (&["--lengths", "normal:5"], &["--lengths = normal:5", "uniform:LONGEST"]),
        (&["--lengths", "runs/none"], &["--lengths = runs/none: no such run"]),
        (&["--simulate", "--transfer=-1"], &["--transfer = -1: a time from 0 up"]),
        (&["--simulate", "--reward", "nan"], &["--reward = NaN: a time from 0 up"]),
        (&["--simulate", "--group-size", "3"], &["--group-size = 3: a divisor of --batch-size = 128"]),
        (&["--simulate", "-b", "10000000"], &["--simulate", "rollouts would be played through"]),
        (&["-b", "16", "-g", "2", "--simulate", "--group-size", "16"], &["--group-size = 16: the best pipeline has "]),
    ] {
        tidegate(dir.path(), &[&["plan"], args].concat()).refused(2, parts);
    }
    for (args, says) in [
        (&["--transfer", "5"][..], "--simulate"),
        (&["--simulate", "--checkpoint", "5"], "a time and a number of steps from 1 up, as 40000,50"),
    ] {
        let ran = tidegate(dir.path(), &[&["plan"], args].concat());
        assert!(ran.code == 2 && ran.err.contains(says), "{}", ran.err);
    }
    tidegate(dir.path(), &["plan", "--html", "none/plan.html"]).refused(1, &["none/plan.html: there is no folder none"]);
}

/// Catches lengths of another run, prompts that were never answered among them, and a speed that is not the one that was measured.
#[test]
fn lengths_and_speed_may_be_measured() {
    let dir = tempfile::tempdir().unwrap();
    let (run, model) = (recorded_path(), bundled_model());
    let model = model.to_str().unwrap();
    let args = ["plan", "-n", "4", "-b", "16", "-g", "8", "--lengths", run, "--calibrate", model, "--json"];
    let plan = tidegate(dir.path(), &args).ok().json();
    let report = tidegate(dir.path(), &["analyze", run, "--json"]).ok().json()["runs"][0].clone();
    let tasks = report["versions"]["tasks"].as_array().unwrap();
    let of = |key: &str| tasks.iter().map(|task| task[key].as_f64().unwrap()).collect::<Vec<_>>();
    let rollouts: f64 = of("rollouts").iter().sum();
    let tokens: f64 = of("length").iter().zip(of("rollouts")).map(|(length, n)| length * n).sum();
    assert!((plan["mean_length"].as_f64().unwrap() - tokens / rollouts).abs() < 1e-6, "{plan}");
    assert_eq!(plan["longest"], report["longest"][0]["tokens"]);
    let measured = &plan["measured"];
    assert_eq!((plan["unit"].as_str(), measured["decode_s"].as_array().unwrap().len()), (Some("s"), 8));
    assert_eq!((&plan["speed"]["decode_step"], &plan["speed"]["train_token"]), (&measured["step_s"], &measured["train_s"]));
}
