//! A model of others, run here for `tests/peers/check_model.py`, which holds the numbers against those of transformers.

use crate::engine::spec::{Dtype, Sampling};
use crate::engine::torch::cache::Cache;
use crate::engine::torch::device;
use crate::engine::torch::ffi::Places;
use crate::engine::torch::layout::ValueHead;
use crate::engine::torch::model::{Form, Model};
use crate::engine::torch::policy::Policy;
use safetensors::tensor::{self, TensorView, serialize_to_file};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tch::{Device, Tensor};
use tidegate_operators::generate::Generator;
use tidegate_operators::record::{Group, Prompt, Rollout};

/// The folder with what is asked, `asked.json`, and for what is answered: `answers.json`, `logits.safetensors` (`[tokens, V]` a
/// text, by its number) and `saved/`, the model as it is saved.
const VARIABLE: &str = "TIDEGATE_COMPARE";

#[derive(Deserialize)]
struct Asked {
    model: PathBuf,
    texts: Vec<String>,
    /// Type of the numbers to compute in.
    dtype: Dtype,
    /// Most tokens of a greedy continuation.
    new_tokens: usize,
}

#[derive(Serialize)]
struct Answers {
    /// Ids that end a sequence.
    eos: Vec<u32>,
    notes: Vec<String>,
    texts: Vec<Answer>,
}

#[derive(Serialize)]
struct Answer {
    tokens: Vec<u32>,
    continuation: Vec<u32>,
    text: String,
}

/// The likeliest token each time, for all prompts, a few at once.
fn continued(policy: &Policy, prompts: &[Vec<u32>], asked: &Asked) -> BTreeMap<u64, Rollout> {
    let Asked { dtype, new_tokens: max_tokens, .. } = *asked;
    let sampling = Sampling { slots: 6, max_tokens, temperature: 0.0, dtype, ..Sampling::default() };
    let mut generator = policy.generator(&sampling, 1, 0).unwrap();
    generator.load(0, policy.snapshot().unwrap()).unwrap();
    for (number, tokens) in (0..).zip(prompts) {
        let prompt = Prompt { tokens: tokens.clone(), ..Prompt::default() };
        generator.start(Arc::new(Group { number, size: 1, prompt, ..Group::default() })).unwrap();
    }
    let mut done = BTreeMap::new();
    while generator.running() > 0 {
        done.extend(generator.step().unwrap().into_iter().map(|rollout| (rollout.group.number, rollout)));
    }
    done
}

/// `[tokens, V]` f32, as bytes: by steps over a cache, as the generator takes them.
fn logits(policy: &Policy, model: &Model, dtype: Dtype, tokens: &[u32]) -> (Vec<usize>, Vec<u8>) {
    let ids: Vec<i64> = tokens.iter().map(|&id| i64::from(id)).collect();
    let n = ids.len() as i64;
    let cache =
        Cache::new(&policy.config, 1, n, device::kind(dtype), Device::Cpu).map(|mut cache| cache.grow(n).map(|()| cache));
    let cache = cache.unwrap().unwrap();
    let positions: Vec<i64> = (0..n).collect();
    let places = Places::new(&vec![0i64; ids.len()], &positions).unwrap();
    let hidden = model.decode_step(&Tensor::from_slice(&ids), &places, &cache).unwrap();
    let rows = model.logits(&hidden).unwrap();
    let shape = rows.size().iter().map(|&n| n as usize).collect();
    let numbers = Vec::<f32>::try_from(rows.view([-1])).unwrap();
    (shape, numbers.iter().flat_map(|x| x.to_le_bytes()).collect())
}

fn answer(folder: &Path) {
    let asked: Asked = serde_json::from_str(&fs::read_to_string(folder.join("asked.json")).unwrap()).unwrap();
    let policy = Policy::load(&asked.model, "cpu", ValueHead::None).unwrap();
    let prompts: Vec<Vec<u32>> = asked.texts.iter().map(|text| policy.tokenizer.encode(text).unwrap()).collect();
    let _guard = tch::no_grad_guard();
    let snapshot = policy.snapshot().unwrap();
    let form = Form::Packed(device::kind(asked.dtype));
    let model = Model::new(&policy.config, &policy.layout, snapshot.flat(), form).unwrap();
    let all: Vec<(Vec<usize>, Vec<u8>)> =
        prompts.iter().map(|tokens| logits(&policy, &model, asked.dtype, tokens)).collect();
    let named = all.iter().enumerate().map(|(number, (shape, bytes))| {
        (number.to_string(), TensorView::new(tensor::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    serialize_to_file(named, None, &folder.join("logits.safetensors")).unwrap();
    let texts = continued(&policy, &prompts, &asked).into_values().zip(prompts).map(|(rollout, tokens)| Answer {
        tokens,
        continuation: rollout.tokens,
        text: rollout.text,
    });
    let texts = texts.collect();
    policy.save(&folder.join("saved")).unwrap();
    let answers = Answers { eos: policy.config.eos_token_id, notes: policy.notes, texts };
    fs::write(folder.join("answers.json"), serde_json::to_string(&answers).unwrap()).unwrap();
}

/// Asked by `make test-peers` about a real checkpoint; elsewhere there is none.
#[test]
fn a_model_of_others_answers_for_comparison() {
    if let Some(folder) = std::env::var_os(VARIABLE) {
        return answer(Path::new(&folder));
    }
    // Not by a macro: of a test that passes nobody would see it.
    writeln!(stderr(), "skipped: {VARIABLE} names no folder with questions; `make test-peers` asks them").unwrap();
}
