// The output head: log-probabilities, and the choice of a token.
#include "products.h"

using namespace tidegate;

namespace {

// ---- the head: log-probability of the chosen id and entropy, from logits

// Of one row: the largest logit over the temperature, and log of the sum of exponentials above it.
struct Normaliser {
  float most, log_sum;
};

CLONES static Normaliser log_normaliser(const float *logits, int64_t vocabulary, float inverse_temperature) {
  float most = logits[0];
  for (int64_t i = 1; i < vocabulary; i++) most = logits[i] > most ? logits[i] : most;
  most *= inverse_temperature;
  double sum = 0;
  for (int64_t from = 0; from < vocabulary; from += 1024) {
    int64_t to = from + 1024 < vocabulary ? from + 1024 : vocabulary;
    float part = 0;
    for (int64_t i = from; i < to; i++) part += exp_(logits[i] * inverse_temperature - most);
    sum += part;
  }
  return {most, static_cast<float>(std::log(sum))};
}

// -sum p log p, nats.
CLONES static float entropy_of(const float *logits, int64_t vocabulary, float inverse_temperature, Normaliser norm) {
  double sum = 0;
  for (int64_t from = 0; from < vocabulary; from += 1024) {
    int64_t to = from + 1024 < vocabulary ? from + 1024 : vocabulary;
    float part = 0;
    for (int64_t i = from; i < to; i++) {
      float logp = logits[i] * inverse_temperature - norm.most - norm.log_sum;
      part += exp_(logp) * logp;
    }
    sum += part;
  }
  return static_cast<float>(-sum);
}

// d(g_logp * logp[id] + g_entropy * entropy) / d(logits), into `to`, which may be where the logits are; each rounded once.
template <class T>
INLINE void head_back_row_(const float *logits, T *to, int64_t vocabulary, int64_t id, float inverse_temperature, Normaliser norm,
                           float entropy, float g_logp, float g_entropy) {
  float of_id = logits[id] * inverse_temperature - norm.most - norm.log_sum;
  for (int64_t i = 0; i < vocabulary; i++) {
    float logp = logits[i] * inverse_temperature - norm.most - norm.log_sum;
    put(to[i], -exp_(logp) * (g_logp + g_entropy * (logp + entropy)) * inverse_temperature);
  }
  // Where the probability is near 1 what is left of its gradient is small, and must not be the difference of two rounded numbers.
  put(to[id], (-std::expm1(of_id) * g_logp - exp_(of_id) * g_entropy * (of_id + entropy)) * inverse_temperature);
}

// The first id at which the cumulative probability exceeds u, in order of ids; where rounding leaves the sum below u, the last one
// that has a probability. Probabilities are added in blocks.
CLONES static int64_t draw_from(const float *logits, int64_t vocabulary, float inverse_temperature, Normaliser norm, double u) {
  double below = 0;
  int64_t end = vocabulary;
  for (int64_t from = 0; from < vocabulary; from += 256) {
    int64_t to = from + 256 < vocabulary ? from + 256 : vocabulary;
    float part = 0;
    for (int64_t i = from; i < to; i++) part += exp_(logits[i] * inverse_temperature - norm.most - norm.log_sum);
    if (u >= below + part) {
      below += part;
      continue;
    }
    for (int64_t i = from; i < to; i++) {
      below += exp_(logits[i] * inverse_temperature - norm.most - norm.log_sum);
      if (u < below) return i;
    }
    // The sum by vectors was the larger one, by a rounding.
    end = to;
    break;
  }
  for (int64_t i = end - 1; i > 0; i--)
    if (exp_(logits[i] * inverse_temperature - norm.most - norm.log_sum) > 1e-30f) return i;
  return 0;
}

CLONES static int64_t likeliest(const float *logits, int64_t vocabulary) {
  float most = logits[0];
  for (int64_t i = 1; i < vocabulary; i++) most = logits[i] > most ? logits[i] : most;
  for (int64_t i = 0; i < vocabulary; i++)
    if (logits[i] == most) return i;
  return 0;
}

#define ARGS(T)                                                                                                            \
  (const float *logits, T *to, int64_t vocabulary, int64_t id, float inverse_temperature, Normaliser norm, float entropy, float g_logp,     \
   float g_entropy)
BOTH(head_back_row, ARGS(float), ARGS(BFloat16), (logits, to, vocabulary, id, inverse_temperature, norm, entropy, g_logp, g_entropy))
#undef ARGS

// ---- the output head

Tensor logits_in_float(const Tensor &x, const Tensor &w, const optional<Tensor> &blocks) {
  if (blocks) return blocks_product(x, *blocks, std::nullopt, std::nullopt, at::kFloat);
  // Of bf16 no other product here gives sums that are not rounded.
  return on_cpu(x) && x.scalar_type() == at::kFloat ? product(x, w) : plain_product_in_float(x, w);
}

struct Head : Function<Head> {
  // Rows whose logits are there at once. Off the CPU a piece is larger: the gradient of the head is gone over once a piece.
  static int64_t chunk(const Tensor &w) { return std::max<int64_t>(16, (int64_t(1) << (on_cpu(w) ? 24 : 27)) / w.size(0)); }

  static Tensor forward(AutogradContext *ctx, Tensor hidden, Tensor w, Tensor dw, Tensor ids, double temperature) {
    auto n = hidden.size(0), v = w.size(0), rows = chunk(w);
    auto out = at::empty({n, 2}, hidden.options().dtype(at::kFloat));
    auto norms = at::empty({n, 2}, at::kFloat);
    // What one chunk covers is kept for the way back; of more, logits are computed again there.
    // A product in bf16 would round the logits.
    optional<Tensor> blocks;
    if (w.scalar_type() == at::kBFloat16 && can_block(w, at::kBFloat16)) block_into(w, blocks.emplace(at::empty_like(w)));
    Tensor kept;
    for (int64_t from = 0; from < n; from += rows) {
      auto m = std::min(rows, n - from);
      auto logits = logits_in_float(hidden.narrow(0, from, m), w, blocks);
      auto chosen = ids.narrow(0, from, m);
      if (!on_cpu(hidden)) {
        auto logp = at::log_softmax(logits / temperature, -1);
        out.narrow(0, from, m).select(1, 0).copy_(logp.gather(1, chosen.unsqueeze(1)).squeeze(1));
        out.narrow(0, from, m).select(1, 1).copy_((logp.exp() * logp).sum(-1).neg());
      } else {
        auto said = out.data_ptr<float>() + 2 * from;
        auto of = norms.data_ptr<float>() + 2 * from;
        auto inverse = static_cast<float>(1.0 / temperature);
        at::parallel_for(0, m, grain(16 * v), [&](int64_t first, int64_t last) {
          for (int64_t row = first; row < last; row++) {
            auto l = data<float>(logits) + row * v;
            auto norm = log_normaliser(l, v, inverse);
            said[2 * row] = l[data<int64_t>(chosen)[row]] * inverse - norm.most - norm.log_sum;
            said[2 * row + 1] = entropy_of(l, v, inverse, norm);
            of[2 * row] = norm.most, of[2 * row + 1] = norm.log_sum;
          }
        });
      }
      if (n <= rows) kept = logits;
    }
    ctx->save_for_backward({hidden, w, ids, norms, kept});
    ctx->saved_data["dw"] = dw;
    ctx->saved_data["blocks"] = blocks;
    ctx->saved_data["out"] = out.detach();
    ctx->saved_data["temperature"] = temperature;
    return out;
  }

  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    auto hidden = saved[0], w = saved[1], ids = saved[2], norms = saved[3], kept = saved[4];
    auto g = grads[0].contiguous(), dw = ctx->saved_data["dw"].toTensor(), out = ctx->saved_data["out"].toTensor();
    auto blocks = ctx->saved_data["blocks"].isNone() ? std::nullopt : optional<Tensor>(ctx->saved_data["blocks"].toTensor());
    auto temperature = ctx->saved_data["temperature"].toDouble();
    auto n = hidden.size(0), v = w.size(0), rows = chunk(w);
    auto dx = at::zeros_like(hidden);
    for (int64_t from = 0; from < n; from += rows) {
      auto m = std::min(rows, n - from);
      auto h = hidden.narrow(0, from, m), gs = g.narrow(0, from, m), chosen = ids.narrow(0, from, m), said = out.narrow(0, from, m);
      auto logits = kept.defined() ? kept : logits_in_float(h, w, blocks);
      Tensor dl;
      if (!on_cpu(hidden)) {
        auto logp = at::log_softmax(logits / temperature, -1);
        auto g0 = gs.select(1, 0).unsqueeze(1), g1 = gs.select(1, 1).unsqueeze(1);
        dl = logp.exp() * (g0 + g1 * (logp + said.select(1, 1).unsqueeze(1))) * (-1.0 / temperature);
        dl.scatter_add_(1, chosen.unsqueeze(1), g0 / temperature);
        dl = dl.to(w.scalar_type());
      } else {
        dl = w.scalar_type() == at::kFloat ? logits : at::empty({m, v}, w.options());
        auto inverse = static_cast<float>(1.0 / temperature);
        both(w, [&](auto zero) {
          using T = decltype(zero);
          at::parallel_for(0, m, grain(8 * v), [&](int64_t first, int64_t last) {
            for (int64_t row = first; row < last; row++) {
              auto of = norms.data_ptr<float>() + 2 * (from + row);
              auto coefficients = data<float>(gs) + 2 * row;
              head_back_row(data<float>(logits) + row * v, dl.data_ptr<T>() + row * v, v, data<int64_t>(chosen)[row], inverse,
                            Normaliser{of[0], of[1]}, data<float>(said)[2 * row + 1], coefficients[0], coefficients[1]);
            }
          });
        });
      }
      dx.narrow(0, from, m).copy_(product(dl, w.t()));
      add_gradient(dw, dl, h);
    }
    return {dx, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

} // namespace

extern "C" {

// `[n, 2]` f32: log-probability of each id, and entropy.
char *tidegate_head(Tensor **out, const Tensor *hidden, const Tensor *w, const Tensor *dw, const Tensor *ids, double temperature) {
  return guarded([&] {
    auto n = hidden->size(0);
    TORCH_CHECK(ids->dim() == 1 && ids->size(0) == n && ids->is_contiguous(), n, " hidden states and ids of shape ", ids->sizes());
    auto v = w->size(0);
    TORCH_CHECK(n == 0 || (ids->min().item<int64_t>() >= 0 && ids->max().item<int64_t>() < v), "an id outside the vocabulary of ", v);
    *out = new Tensor(Head::apply(*hidden, *w, *dw, *ids, temperature));
  });
}

// `[n, V]` f32 by a head that is not in blocks.
char *tidegate_logits(Tensor **out, const Tensor *hidden, const Tensor *w) {
  return guarded([&] { *out = new Tensor(logits_in_float(*hidden, *w, std::nullopt)); });
}

// Chooses an id a row of logits `[rows, V]` by the uniform draws; the likeliest where the temperature is 0.
char *tidegate_choose(const Tensor *logits, const double *draws, double temperature, int64_t *ids, float *logps) {
  return guarded([&] {
    auto rows = logits->size(0), v = logits->size(1);
    auto inverse = temperature == 0 ? 1.0 : 1.0 / temperature;
    if (!on_cpu(*logits)) {
      auto logp = at::log_softmax(*logits * inverse, -1);
      // Does not wait for what is under way there: memory that is not pinned is staged before the copy returns.
      auto us = at::from_blob(const_cast<double *>(draws), {rows, 1}, at::kDouble).to(logits->device(), at::kDouble, true);
      auto chosen = temperature == 0 ? logp.argmax(-1, true)
                                     : at::searchsorted(logp.to(at::kDouble).exp().cumsum(-1), us, false, true).clamp_max(v - 1);
      auto said = at::cat({chosen.to(at::kDouble), logp.gather(1, chosen).to(at::kDouble)}, 1).cpu();
      for (int64_t row = 0; row < rows; row++) {
        ids[row] = static_cast<int64_t>(data<double>(said)[2 * row]);
        logps[row] = static_cast<float>(data<double>(said)[2 * row + 1]);
      }
      return;
    }
    auto all = logits->contiguous();
    at::parallel_for(0, rows, grain(16 * v), [&](int64_t from, int64_t to) {
      for (int64_t row = from; row < to; row++) {
        auto l = data<float>(all) + row * v;
        auto norm = log_normaliser(l, v, static_cast<float>(inverse));
        ids[row] = temperature == 0 ? likeliest(l, v) : draw_from(l, v, static_cast<float>(inverse), norm, draws[row]);
        logps[row] = l[ids[row]] * static_cast<float>(inverse) - norm.most - norm.log_sum;
      }
    });
  });
}
}
