// Draws a token for each row of logits z from softmax(z / T) of the tokens that min_p, top_k and
// top_p keep: argmax P / E, where each token has a number E of the exponential distribution. So the
// draw needs no sum of P, and nothing is sorted: a limit is found by bisecting the range of logits.
//   m: the largest logit     from: the least logit that is kept, as an integer in the same order
//   count, mass: how many tokens are at or above a logit, and the sum of their P
// E depends on (seed, position, token) alone, so a row's token does not depend on the rest of the
// batch; rows that share one seed differ by their index.
#pragma once

#include "products/turns.hpp"
#include "tile/philox.hpp"

namespace xeflash {

constexpr float kGreedy = 1e-5f;               // lower temperatures take the largest logit
constexpr uint32_t kDrawsTokens = 0x544f4b45;  // keeps these draws apart from others of one seed

// Maps floats to integers of the same order; 0 and -0 map to the same integer.
XF_INLINE Ints ordered(Floats x) {
  const Ints bits = as_ints(Floats(x + 0.f));
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
XF_INLINE int ordered(float x) {
  const int bits = __builtin_bit_cast(int, x + 0.f);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
XF_INLINE int middle_above(int low, int high) {  // without overflow
  return static_cast<int>(static_cast<uint32_t>(low) +
                          (static_cast<uint32_t>(high) - static_cast<uint32_t>(low) + 1) / 2);
}
XF_INLINE int middle_below(int low, int high) {
  return static_cast<int>(static_cast<uint32_t>(low) +
                          (static_cast<uint32_t>(high) - static_cast<uint32_t>(low)) / 2);
}

// Draws 4 words for each counter.
XF_INLINE void draw(Words counter, const uint32_t (&seed)[2], const uint32_t (&position)[2],
                    int row, Words (&c)[4]) {
  c[0] = counter, c[1] = Words(position[0]), c[2] = Words(position[1]);
  c[3] = Words(kDrawsTokens + static_cast<uint32_t>(row));
  philox(c, seed[0], seed[1]);
}
// (x + 1/2) / 2^32, the same on every device.
XF_INLINE Floats to_uniform(Words x) {
  return (floats_of_halves(x >> 16) * 65536.f + (floats_of_halves(x & 0xffffu) + 0.5f)) * 0x1p-32f;
}
// -log(1 - u), as precise where u is near 0 as where it is near 1.
XF_INLINE Floats to_exponential(Words x) {
  const Floats u = to_uniform(x);
  const Floats near = u * (u * (u * (u * 0.25f + 1.f / 3) + 0.5f) + 1.f);
  return select(u < 0x1p-6f, near, Floats(log2(to_uniform(~x)) * -kLn2));
}

template <class T>
struct Sampler {
  const SampleParams& p;
  Row<T> z;
  float m, factor = 0.f;  // log2(e) / T
  int from = ordered(-kInf) + 1;

  XF_INLINE Sampler(const SampleParams& p, int row) : p(p), z(p, row) {
    Floats most(-kInf);
    each([&](Floats v, int) { most = max(most, v); });
    m = fold_turns(largest_of(most), [](auto a, auto b) { return max(a, b); });
  }

  // Calls f(logits, first column) for each vector of logits in the thread's blocks.
  template <class F>
  XF_INLINE void each(F f) const {
    constexpr int kVectors = kBlock / kLanes;
    for (int first = Group::turn() * kBlock; first < p.columns; first += Group::turns * kBlock) {
      Floats v[kVectors];
      XF_UNROLL for (int i = 0; i < kVectors; ++i) v[i] = z.at(first + i * kLanes);
      XF_UNROLL for (int i = 0; i < kVectors; ++i) f(v[i], first + i * kLanes);
    }
  }

  // Returns the logit of a stored value, which is scaled and then capped.
  XF_INLINE Floats logit(Floats v) const {
    const Floats scaled = v * p.scale;
    if (p.softcap > 0.f) return Floats(tanh(Floats(scaled * p.inverse_cap)) * p.softcap);
    return scaled;
  }
  // Returns P relative to the largest P, which is 1.
  XF_INLINE Floats weights(Floats v) const {
    const Floats below = logit(v) - logit(Floats(m));
    return select(v == Floats(m), Floats(1.f), exp2(Floats(below * factor)));
  }

  XF_INLINE int count(int from) const {
    Ints sum(0);
    each([&](Floats v, int) { sum = sum + to_ints(ordered(v) >= from); });
    return fold_turns(sum_of_lanes(sum), [](auto a, auto b) { return a + b; });
  }
  XF_INLINE float mass(int from) const {
    Floats sum(0.f);
    each([&](Floats v, int) {
      const Bools stays = ordered(v) >= from;
      if (is_any(stays)) sum = sum + select(stays, weights(v), Floats(0.f));
    });
    return fold_turns(sum_of_lanes(sum), [](auto a, auto b) { return a + b; });
  }

  // Keeps the tokens whose P is at least `share` of the largest P.
  XF_INLINE void limit_min_p(float share) {
    if (!(share > 0.f)) return;
    int low = from, high = ordered(m);
    while (low < high) {  // logits may be capped: P follows from a logit, but no logit from P
      const int middle = middle_below(low, high);
      if (weight_of(middle) >= share)
        high = middle;
      else
        low = middle + 1;
    }
    from = low;
  }
  XF_INLINE float weight_of(int at) const {
    const float v = __builtin_bit_cast(float, at ^ ((at >> 31) & 0x7fffffff));
    return static_cast<float>(weights(Floats(v))[0]);
  }
  // Keeps the k largest tokens, and any that equal the k-th.
  XF_INLINE void limit_top_k(int k) {
    if (k <= 0 || k >= p.columns) return;
    int low = from, high = ordered(m);
    while (low < high) {
      const int middle = middle_above(low, high), kept = count(middle);
      if (kept >= k)
        low = middle;
      else
        high = middle - 1;
      if (kept == k) break;
    }
    from = low;
  }
  // Keeps the largest tokens until their P reaches `share` of the sum, including the token that
  // reaches it and any that equal it.
  XF_INLINE void limit_top_p(float share) {
    if (!(share < 1.f)) return;
    const float wanted = share * mass(from);
    int low = from, high = ordered(m);
    while (low < high) {
      const int middle = middle_below(low, high);
      if (mass(middle + 1) < wanted)
        high = middle;
      else
        low = middle + 1;
    }
    from = low;
  }

  // Returns the kept token whose value is the largest, and of equal ones the lowest. f calls its
  // argument with (logits, values, first column).
  template <class F>
  XF_INLINE int argmax(F f) const {
    constexpr int kNone = 0x7fffffff;
    Floats best(-kInf);
    Ints token(kNone);
    f([&](Floats v, Floats x, int k) {
      const Bools better = (ordered(v) >= from) & (x > best);
      best = select(better, x, best);
      token = select(better, Ints(lane_index() + k), token);
    });
    const float most = fold_turns(largest_of(best), [](auto a, auto b) { return max(a, b); });
    const int lowest = lowest_of(select(best == Floats(most), token, Ints(kNone)));
    return fold_turns(lowest, [](auto a, auto b) { return a < b ? a : b; });
  }
  XF_INLINE int largest() const {
    return argmax([&](auto take) { each([&](Floats v, int k) { take(v, v, k); }); });
  }
  // Draws a token. The 4 words of a counter are for tokens that are 16 apart.
  XF_INLINE int drawn(const uint32_t (&seed)[2], const uint32_t (&position)[2], int row) const {
    return argmax([&](auto take) {
      for (int first = Group::turn() * kBlock; first < p.columns; first += Group::turns * kBlock) {
        XF_UNROLL for (int i = 0; i < 16; i += kLanes) {
          Words words[4];
          draw(to_words(Ints(lane_index() + (first / 4 + i))), seed, position, row, words);
          XF_UNROLL for (int w = 0; w < 4; ++w) {
            const int k = first + 16 * w + i;
            const Floats v = z.at(k);
            take(v, divide(weights(v), to_exponential(words[w])), k);
          }
        }
      }
    });
  }
};

template <class Config>
XF_INLINE void sample_tokens(const SampleParams& p) {
  allocate_turns();
  const int row = static_cast<int>(Group::index());
  Sampler<typename Config::Element> sampler(p, row);
  const float temperature = number_of_row(p.temperature, row);
  int token = -1;
  if (!(sampler.m > -kInf)) {  // the row has no token to choose
  } else if (!(temperature >= kGreedy)) {
    token = sampler.largest();
  } else {
    sampler.factor = kLog2e / temperature;
    const float min_p = number_of_row(p.min_p, row);
    if (!p.min_p_last) sampler.limit_min_p(min_p);
    sampler.limit_top_k(number_of_row(p.top_k, row));
    sampler.limit_top_p(number_of_row(p.top_p, row));
    if (p.min_p_last) sampler.limit_min_p(min_p);
    uint32_t seed[2], position[2];
    halves_of_row(p.seed, row, seed);
    halves_of_row(p.position, row, position);
    token = sampler.drawn(seed, position, p.seed.data ? 0 : p.first_row + row);
  }
  if (Group::turn() == 0) store_token(p.tokens, row, token);
}

}  // namespace xeflash
