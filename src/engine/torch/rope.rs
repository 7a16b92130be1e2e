//! How the rotary embedding's frequencies are stretched for contexts longer than those a model began with.

use crate::engine::torch::keys::Keys;
use crate::error::Result;
use serde_json::{Map, Value, json};
use std::f32::consts::TAU;
use tch::Tensor;

/// What becomes of a frequency `f = theta^(-2i / head_dim)`, radians a position. `Linear` and `Llama3` are those of
/// transformers' `rope_type`, with its names.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// It stays (`"default"`).
    #[default]
    None,
    /// `f / factor` (Chen et al. 2023, arXiv 2306.15595).
    Linear { factor: f64 },
    /// Waves shorter than `original / high_freq_factor` positions stay, those longer than `original / low_freq_factor` are
    /// divided by `factor`, and between the two it is interpolated (Llama 3.1; Grattafiori et al. 2024, arXiv 2407.21783).
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        /// Longest sequence that the model was first trained on, tokens.
        original_max_position_embeddings: i64,
    },
}

/// Where transformers 5 and 4 write it.
const KEYS: [&str; 2] = ["rope_parameters", "rope_scaling"];

impl RopeScaling {
    /// What `config.json` asks for.
    ///
    /// # Errors
    /// A kind that is not supported, a number that is missing or cannot be, a key that nobody knows; two places that differ.
    pub(super) fn of(keys: &Keys) -> Result<RopeScaling> {
        let there = KEYS.into_iter().filter(|key| keys.get(key).is_some());
        let found: Vec<RopeScaling> = there.map(|key| RopeScaling::one(keys, key)).collect::<Result<_>>()?;
        match found[..] {
            [] => Ok(RopeScaling::None),
            [first, second] if first != second => Err(keys.refuse("rope_scaling", "rope_parameters says otherwise")),
            [first, ..] => Ok(first),
        }
    }

    fn one(keys: &Keys, key: &str) -> Result<RopeScaling> {
        let Some(rope) = keys.get(key).and_then(Value::as_object) else {
            return Err(keys.refuse(key, "it must be an object"));
        };
        let get = |name: &str| rope.get(name).filter(|value| !value.is_null());
        let number = |name: &str| {
            let number = get(name).and_then(Value::as_f64).filter(|x| x.is_finite() && *x > 0.0);
            number.ok_or_else(|| keys.refuse(key, &format!("{name} must be a positive number")))
        };
        let kind = get("rope_type").or_else(|| get("type")).map_or(Some("default"), Value::as_str);
        let (scaling, names): (_, &[&str]) = match kind {
            Some("default") => (RopeScaling::None, &[]),
            Some("linear") => (RopeScaling::Linear { factor: number("factor")? }, &["factor"]),
            Some("llama3") => (
                RopeScaling::Llama3 {
                    factor: number("factor")?,
                    low_freq_factor: number("low_freq_factor")?,
                    high_freq_factor: number("high_freq_factor")?,
                    original_max_position_embeddings: number("original_max_position_embeddings")? as i64,
                },
                &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"],
            ),
            _ => return Err(keys.refuse(key, "supported rope_types are \"default\", \"linear\" and \"llama3\"")),
        };
        let whole = |name: &str| name == "partial_rotary_factor" && number(name).is_ok_and(|part| part == 1.0);
        let known = |name: &str| ["rope_type", "type", "rope_theta"].contains(&name) || names.contains(&name) || whole(name);
        if let Some(name) = rope.keys().find(|name| get(name).is_some() && !known(name)) {
            return Err(keys.refuse(key, &format!("{name} is not supported")));
        }
        match scaling {
            RopeScaling::Llama3 { low_freq_factor, high_freq_factor, .. } if low_freq_factor >= high_freq_factor => {
                Err(keys.refuse(key, "low_freq_factor must be below high_freq_factor"))
            }
            scaling => Ok(scaling),
        }
    }

    /// The keys of `rope_parameters`, but for `rope_theta`.
    pub(super) fn to_json(self) -> Map<String, Value> {
        let json = match self {
            RopeScaling::None => json!({ "rope_type": "default" }),
            RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_max_position_embeddings,
            }),
        };
        json.as_object().cloned().unwrap_or_default()
    }

    /// The stretched `frequencies` (`[head_dim / 2]`, f32).
    ///
    /// # Errors
    /// Whatever libtorch says.
    pub(super) fn apply(self, frequencies: &Tensor) -> Result<Tensor> {
        if self == RopeScaling::None {
            return Ok(frequencies.shallow_clone());
        }
        let stretched: Vec<f32> = Vec::<f32>::try_from(frequencies)?.into_iter().map(|f| self.stretched(f)).collect();
        Ok(Tensor::f_from_slice(&stretched)?.f_to_device(frequencies.device())?)
    }

    /// In f32, as transformers computes it: at position 100,000 another rounding is a different angle.
    fn stretched(self, frequency: f32) -> f32 {
        match self {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / factor as f32,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                let original = original_max_position_embeddings as f64;
                let wave = TAU / frequency;
                if wave < (original / high_freq_factor) as f32 {
                    frequency
                } else if wave > (original / low_freq_factor) as f32 {
                    frequency / factor as f32
                } else {
                    let share =
                        (original as f32 / wave - low_freq_factor as f32) / (high_freq_factor - low_freq_factor) as f32;
                    (1.0 - share) * frequency / factor as f32 + share * frequency
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const LLAMA3: RopeScaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };

    fn of(json: Value) -> Result<RopeScaling, String> {
        let keys = Keys::parse(&json.to_string(), Path::new("c")).unwrap();
        RopeScaling::of(&keys).map_err(|e| e.to_string())
    }

    /// Llama 3.1's own numbers, worked out by hand: a wave of 2048 positions or less stays, one of 8192 or more is 8 times as
    /// long, one of 4096 is a third of the way: (8192 / 4096 - 1) / (4 - 1).
    #[test]
    fn short_waves_stay_and_long_ones_are_stretched() {
        let wave = |positions: f32| TAU / LLAMA3.stretched(TAU / positions);
        for (before, after) in
            [(6.0, 6.0), (2000.0, 2000.0), (9000.0, 72_000.0), (4096.0, 4096.0 / (2.0 / 3.0 / 8.0 + 1.0 / 3.0))]
        {
            assert!((wave(before) / after - 1.0).abs() < 1e-6, "{before}: {} not {after}", wave(before));
        }
        assert_eq!(RopeScaling::Linear { factor: 4.0 }.stretched(0.5), 0.125);
        let frequencies = Tensor::from_slice(&[TAU / 6.0, TAU / 9000.0]);
        let found = Vec::<f32>::try_from(LLAMA3.apply(&frequencies).unwrap()).unwrap();
        assert_eq!(found, [TAU / 6.0, TAU / 9000.0 / 8.0]);
    }

    #[test]
    fn both_layouts_are_read_and_written() {
        for scaling in [RopeScaling::None, RopeScaling::Linear { factor: 2.5 }, LLAMA3] {
            let json = Value::Object(scaling.to_json());
            for layout in [
                json!({"rope_scaling": json}),
                json!({"rope_parameters": json}),
                json!({"rope_parameters": json, "rope_scaling": json}),
            ] {
                assert_eq!(of(layout), Ok(scaling));
            }
        }
        assert_eq!(of(json!({"rope_scaling": {"type": "linear", "factor": 2}})), Ok(RopeScaling::Linear { factor: 2.0 }));
        assert_eq!(of(json!({"rope_scaling": null})), Ok(RopeScaling::None));
        assert_eq!(of(json!({"rope_parameters": {"rope_theta": 5.0, "partial_rotary_factor": 1.0}})), Ok(RopeScaling::None));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let llama3 = |key: &str, value: Value| {
            let mut json = Value::Object(LLAMA3.to_json());
            json[key] = value;
            json!({ "rope_scaling": json })
        };
        for (json, says) in [
            (json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}), "supported rope_types are \"default\""),
            (json!({"rope_scaling": {"type": "dynamic", "factor": 4.0}}), "supported rope_types are \"default\""),
            (json!({"rope_scaling": {"type": "mrope", "mrope_section": [1, 1]}}), "supported rope_types are \"default\""),
            (json!({"rope_scaling": {"rope_type": 3}}), "supported rope_types are \"default\""),
            (json!({"rope_scaling": "linear"}), "it must be an object"),
            (json!({"rope_scaling": {"rope_type": "linear"}}), "factor must be a positive number"),
            (llama3("factor", json!(0)), "factor must be a positive number"),
            (llama3("low_freq_factor", Value::Null), "low_freq_factor must be a positive number"),
            (llama3("original_max_position_embeddings", json!("8k")), "original_max_position_embeddings must be a positive"),
            (llama3("high_freq_factor", json!(1.0)), "low_freq_factor must be below high_freq_factor"),
            (llama3("attention_factor", json!(0.7)), "attention_factor is not supported"),
            (json!({"rope_parameters": {"partial_rotary_factor": 0.5}}), "partial_rotary_factor is not supported"),
            (
                json!({"rope_parameters": {"full_attention": {"rope_type": "default"}, "sliding_attention": {}}}),
                "full_attention is not supported",
            ),
            (
                json!({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "linear", "factor": 2}}),
                "rope_parameters says otherwise",
            ),
        ] {
            let message = of(json).unwrap_err();
            assert!(message.starts_with("c: rope_") && message.contains(&format!(": {says}")), "{message}");
        }
    }
}
