// Products of few rows on Xe. Weights are the left operand of dpas, which takes them as they lie: 8
// outputs by 16 inputs, read 64 bytes of a row at a time. Lane = row of x, and a product always has
// as many rows as there are lanes: reading W takes the time, so unused rows cost nothing.
#pragma once

#include "products/weights.hpp"
#include "xe/mma.hpp"

namespace xeflash::xe {

template <class E>
constexpr bool kIsPacked = std::is_same_v<E, packed4>;

constexpr int kFetchAhead = 4;  // in steps of a thread

// Reads a single number in memory.
template <class T>
XF_INLINE float number_at(const T* p) {
  if constexpr (std::is_same_v<T, bf16>)
    return __builtin_bit_cast(float, uint32_t{*reinterpret_cast<const uint16_t*>(p)} << 16);
  else
    return static_cast<float>(*p);
}

// ---- operands -----------------------------------------------------------------------------------

// Gathers dwords of rows where there are no 2D block messages. Elements beyond `width` and lanes
// that are not `there` read 0.
template <class T, int N>
XF_INLINE simd<uint32_t, N> gather_inside(const void* base, simd<uint32_t, N> offsets,
                                          simd<int, N> dword, int width,
                                          esimd::simd_mask<N> there) {
  constexpr int kPerDword = 4 / sizeof(T);
  if constexpr (kAccess != Access::elements || sizeof(T) == 4) {
    const esimd::simd_mask<N> inside = there & (dword * kPerDword < width);
    return esimd::gather<uint32_t, N>(static_cast<const uint32_t*>(base), offsets, inside,
                                      simd<uint32_t, N>(0));
  } else {
    using Bits = std::conditional_t<sizeof(T) == 1, uint8_t, uint16_t>;
    simd<uint32_t, N> x = 0;
    XF_UNROLL for (int i = 0; i < kPerDword; ++i) {
      const esimd::simd_mask<N> inside = there & (dword * kPerDword + i < width);
      const simd<uint32_t, N> at = offsets + static_cast<uint32_t>(i * sizeof(T));
      x |= simd<uint32_t, N>(
               esimd::gather<Bits, N>(static_cast<const Bits*>(base), at, inside, simd<Bits, N>(0)))
           << static_cast<uint32_t>(8 * i * sizeof(T));
    }
    return x;
  }
}

// Returns the surface of a whole matrix, however wide it is.
template <class T>
XF_INLINE Surface whole_surface(const Rows<T>& m) {
  return surface<(1 << 22)>(m);
}

// Loads 8 dwords of each of kLanes rows of x: [dword][row], lane = row.
template <class T>
struct InputStream {
  const Rows<const T>& rows;
  XF_INLINE explicit InputStream(const Rows<const T>& m) : rows(m) {}
  XF_INLINE simd<uint32_t, 8 * kLanes> load(int row, int dword) {
    const auto offsets =
        Offsets<kLanes>(lane_index()) * static_cast<uint32_t>(rows.stride * sizeof(T));
    simd<uint32_t, 8 * kLanes> x;
    XF_UNROLL for (int i = 0; i < 8; ++i) {
      x.template select<kLanes, 1>(i * kLanes) =
          gather_inside<T, kLanes>(rows.row(row), Offsets<kLanes>(offsets + (dword + i) * 4),
                                   ints(dword + i), rows.width, lane_index() < rows.size() - row);
    }
    return x;
  }
};
template <class T>
  requires(kAccess == Access::block2d)
struct InputStream<T> {
  BlockMessage<uint32_t, 8, kLanes> message;
  XF_INLINE explicit InputStream(const Rows<const T>& m) : message(whole_surface(m)) {}
  XF_INLINE simd<uint32_t, 8 * kLanes> load(int row, int dword) {
    message.move_x(dword);
    message.move_y(row);
    return message.template load<Form::transposed>();
  }
};

// 64 bytes of each of R rows of weights: row after row; or, from a 2D block message, kAcross blocks
// of R rows side by side, each as wide as 16 inputs (see WeightStream).
template <class E, int R>
struct WeightBlock {
  static constexpr int kDwords = 16;
  simd<uint32_t, R * kDwords> x;

  // Returns `Count` dwords, from dword d on, of 8 rows from row 8 o on.
  template <int Count>
  XF_INLINE simd<uint32_t, 8 * Count> part_of(int o, int d) const {
    if constexpr (kAccess == Access::block2d) {
      // The blocks of the message are Count dwords wide.
      return part<8 * Count>(x, (d / Count * R + o * 8) * Count);
    } else {
      simd<uint32_t, 8 * Count> rows;
      XF_UNROLL for (int r = 0; r < 8; ++r) {
        rows.template select<Count, 1>(r * Count) = part<Count>(x, (o * 8 + r) * kDwords + d);
      }
      return rows;
    }
  }
};
template <class E, int R>
struct WeightStream {
  const Rows<const E>& rows;
  XF_INLINE explicit WeightStream(const Rows<const E>& m) : rows(m) {}
  XF_INLINE WeightBlock<E, R> load(int dword) {
    constexpr int kPerDword = 4 / sizeof(E), kDwords = WeightBlock<E, R>::kDwords;
    WeightBlock<E, R> block;
    if (kAccess == Access::dwords && (dword + kDwords) * kPerDword <= rows.width) {
      XF_UNROLL for (int r = 0; r < R; r += 8) {
        block.x.template select<8 * kDwords, 1>(r * kDwords) =
            read_whole_rows<8, kDwords>(rows, r, dword);
      }
    } else {
      const simd<int, kDwords> column = simd<int, kDwords>(0, 1) + dword;
      XF_UNROLL for (int r = 0; r < R; ++r) {
        block.x.template select<kDwords, 1>(r * kDwords) =
            gather_inside<E, kDwords>(rows.row_or_last(r), Offsets<kDwords>(column * 4), column,
                                      rows.width, esimd::simd_mask<kDwords>(1));
      }
    }
    return block;
  }
  XF_INLINE void fetch(int) {}
};
template <class E, int R>
  requires(kAccess == Access::block2d)
struct WeightStream<E, R> {
  // A block is as wide as 16 inputs. Packed weights have 32 bytes instead, with 16 inputs of each
  // of the four parts of a unit.
  static constexpr int kBytes = kIsPacked<E> ? 32 : 16 * sizeof(E), kAcross = 64 / kBytes;
  using Unit = std::conditional_t<(kAcross > 2), uint8_t, uint32_t>;  // dwords: at most 2 blocks
  BlockMessage<Unit, kBytes / sizeof(Unit), R, kAcross> message;
  XF_INLINE explicit WeightStream(const Rows<const E>& m) : message(whole_surface(m)) {}
  XF_INLINE WeightBlock<E, R> load(int dword) {
    message.move_x(dword * int(4 / sizeof(Unit)));
    auto block = message.load();
    return {block.template bit_cast_view<uint32_t>()};
  }
  XF_INLINE void fetch(int dword) {
    message.move_x(dword * int(4 / sizeof(Unit)));
    message.prefetch();
  }
};

// Packed weights q become the numbers q + kAdded<T>. In fp32 these are q - 8, which are as small as
// the weights: a sum of larger ones, less their part in it, would lose digits.
template <class T>
constexpr int kAdded = 16;
template <>
constexpr int kAdded<float> = -8;

// Returns 8 outputs from 8 o on by 16 inputs from 16 i on, of a block of 64 bytes, as a left
// operand of T.
template <class T, class E, int R>
XF_INLINE simd<T, 8 * 16> left_of(const WeightBlock<E, R>& block, int o, int i) {
  if constexpr (kIsPacked<E>) {
    const int m = i / 2;  // input 16 i = 32 m + 16 (i % 2)
    const simd<uint32_t, 64> dwords = block.template part_of<8>(o, i % 2 * 8);
    if constexpr (sizeof(T) == 2) {
      return nibbles_plus_16<T>(dwords, m);
    } else {
      simd<float, 128> x;
      XF_UNROLL for (int k = 0; k < 2; ++k) {
        x.template select<64, 2>(k) =
            esimd::convert<float>(simd<uint32_t, 64>((dwords >> (4 * m + 16 * k)) & 15u)) +
            static_cast<float>(kAdded<T>);
      }
      return x;
    }
  } else if constexpr (kQuantised<E>) {
    const simd<uint32_t, 32> dwords = block.template part_of<4>(o, i * 4);
    auto wide = widen_in_order<T, E>(dwords);
    return wide.template bit_cast_view<T>();
  } else {
    constexpr int kDwords = 16 * sizeof(T) / 4;
    simd<uint32_t, 8 * kDwords> dwords = block.template part_of<kDwords>(o, i * kDwords);
    return dwords.template bit_cast_view<T>();
  }
}

// ---- sums ---------------------------------------------------------------------------------------

// Outputs are rows of the tile, and rows of x are its columns.
template <class Config>
struct Products {
  static constexpr int Br = round_up(Config::rows, kLanes), Bn = Config::outputs;
  static constexpr int kBlocks = Br / kLanes;
  Tile<Bn, Br> x;
  simd<float, Br> inputs = 0.f;  // sum of each row of x, if all inputs share a scale

  XF_INLINE Products() { fill(x, 0.f); }
};

// C += A B for 8 outputs, 16 inputs and kLanes rows of x.
template <class T, class Block>
XF_INLINE void multiply_16(Block C, const simd<uint32_t, 16 * sizeof(T) / 4 * kLanes>& inputs,
                           const simd<T, 128>& A) {
  auto bits = inputs;
  const simd<T, 16 * kLanes> B = bits.template bit_cast_view<T>();
  if constexpr (sizeof(T) == 2) {
    multiply<T>(C, B, A, false);
  } else {
    // Rows of A have 16 elements here; in multiply() for fp32 they have kLanes, which may be 8.
    XF_UNROLL for (int r = 0; r < 8; ++r) {
      floats sum = part<kLanes>(B, 0) * A.template replicate_w<kLanes, 1>(r * 16);
      XF_UNROLL for (int k = 1; k < 16; ++k) {
        sum += part<kLanes>(B, k * kLanes) * A.template replicate_w<kLanes, 1>(r * 16 + k);
      }
      C.template select<kLanes, 1>(r * kLanes) += sum;
    }
  }
}
// sum += the 16 inputs of each row of x.
template <class T>
XF_INLINE void add_inputs(simd<float, kLanes>& sum,
                          const simd<uint32_t, 16 * sizeof(T) / 4 * kLanes>& inputs) {
  auto bits = inputs;
  const simd<T, 16 * kLanes> B = bits.template bit_cast_view<T>();
  if constexpr (sizeof(T) == 2) {
    simd<uint16_t, 16> ones = std::is_same_v<T, bf16> ? 0x3f80 : 0x3c00;
    sum = esimd::xmx::dpas<8, 1, float>(sum, B, simd<T, 16>(ones.template bit_cast_view<T>()));
  } else {
    XF_UNROLL for (int k = 0; k < 16; ++k) sum += part<kLanes>(B, k * kLanes);
  }
}

// Returns whether a sum of products with the stored weights is off by a multiple of the sum of
// inputs, because weights have a zero or are multiplied as other numbers.
template <class T, class W>
XF_INLINE bool has_offset(const W& weights) {
  return (W::kPacked && kAdded<T> != -8) || weights.p.zeros != nullptr;
}

// Reads a number for each of N outputs; outputs past the last one repeat its number.
template <int N, class Number, class W>
XF_INLINE simd<float, N> per_output(const W& weights, const Number* first, int64_t stride) {
  using Bits = std::conditional_t<sizeof(Number) == 1, uint8_t,
                                  std::conditional_t<sizeof(Number) == 2, uint16_t, uint32_t>>;
  const int last = weights.p.outputs - 1 - weights.output;
  const simd<int, N> n = esimd::min<int>(simd<int, N>(0, 1), last);
  simd<Bits, N> bits =
      esimd::gather<Bits, N>(reinterpret_cast<const Bits*>(first),
                             Offsets<N>(n * static_cast<int>(stride * sizeof(Number))));
  if constexpr (std::is_same_v<Number, bf16>) {
    simd<uint32_t, N> wide = esimd::convert<uint32_t>(bits) << 16;
    return wide.template bit_cast_view<float>();
  } else {
    return esimd::convert<float>(simd<Number, N>(bits.template bit_cast_view<Number>()));
  }
}

// x = s (part_sums - offset inputs), or x += that, with a scale s and an offset per output.
template <bool Add, class T, class W, int Bn, int Br>
XF_INLINE void scale_part(Tile<Bn, Br>& x, const Tile<Bn, Br>& part_sums,
                          const simd<float, Br>& inputs, const W& weights, int group) {
  const LinearParams& p = weights.p;
  const simd<float, Bn> s = per_output<Bn>(weights, weights.scale(group, 0), p.scale_output);
  constexpr float kMore = W::kPacked ? kAdded<T> : 0;
  simd<float, Bn> offset = W::kPacked ? kMore + 8.f : 0.f;
  if (p.zeros) {
    offset =
        per_output<Bn>(weights, p.zeros + group * p.zero_group + weights.output * p.zero_output,
                       p.zero_output) +
        kMore;
  }
  XF_UNROLL for (int c = 0; c < x.kChunks; ++c) {
    XF_UNROLL for (int n = 0; n < Bn; ++n) {
      floats v = part_sums.row(n, c);
      if (has_offset<T>(weights)) v -= part<kLanes>(inputs, c * kLanes) * floats(offset[n]);
      if constexpr (Add)
        x.row(n, c) += v * floats(s[n]);
      else
        x.row(n, c) = v * floats(s[n]);
    }
  }
}

// sums += x W^T for `Steps` steps of 16 inputs of a block of weights, from step `first` on. k is
// the first input of the block.
template <int Steps, class T, class W, int Bn, int Br>
XF_INLINE void add_steps(Tile<Bn, Br>& sums, simd<float, Br>& inputs, InputStream<T>& rows,
                         const WeightBlock<typename W::Element, Bn>& block, const W& weights, int k,
                         int first) {
  constexpr int kDwords = 16 * sizeof(T) / 4, kBlocks = Br / kLanes, kSize = kDwords * kLanes;
  XF_UNROLL for (int i = first; i < first + Steps; ++i) {
    simd<uint32_t, kBlocks * kSize> B;
    XF_UNROLL for (int b = 0; b < kBlocks; ++b) {
      XF_UNROLL for (int d = 0; d < kDwords; d += 8) {
        B.template select<8 * kLanes, 1>(b * kSize + d * kLanes) =
            rows.load(b * kLanes, (k + i * 16) * int(sizeof(T)) / 4 + d);
      }
    }
    if constexpr (W::kHasScales) {
      if (has_offset<T>(weights)) {
        XF_UNROLL for (int b = 0; b < kBlocks; ++b) {
          simd<float, kLanes> sum = part<kLanes>(inputs, b * kLanes);
          add_inputs<T>(sum, part<kSize>(B, b * kSize));
          inputs.template select<kLanes, 1>(b * kLanes) = sum;
        }
      }
    }
    XF_UNROLL for (int o = 0; o < Bn / 8; ++o) {
      const auto A = left_of<T>(block, o, i);
      XF_UNROLL for (int b = 0; b < kBlocks; ++b) {
        multiply_16<T>(sums.block(o, b), part<kSize>(B, b * kSize), A);
      }
    }
  }
}

template <class Config, class T, class W>
XF_INLINE void add_products(Products<Config>& sums, const Rows<const T>& x, const W& weights,
                            int k0) {
  using E = typename W::Element;
  constexpr int Bn = Products<Config>::Bn, Br = Products<Config>::Br;
  constexpr int kInputs = kIsPacked<E> ? kUnitInputs : 64 / sizeof(E);  // in 64 bytes
  constexpr int kBlocks = Config::inputs / kInputs;
  static_assert(Config::inputs % kInputs == 0);
  InputStream<T> rows(x);
  WeightStream<E, Bn> stream(weights.rows);
  XF_UNROLL for (int i = 0; i < kBlocks; ++i) {
    const int k = k0 + i * kInputs;
    constexpr int kDwords = 16;  // of a block
    const int dword = k / kInputs * kDwords;
    stream.fetch(dword + kFetchAhead * kBlocks * kDwords * Group::turns);
    const auto block = stream.load(dword);
    if constexpr (W::kGroup == 0) {
      add_steps<kInputs / 16>(sums.x, sums.inputs, rows, block, weights, k, 0);
    } else {
      constexpr int kSame = W::kGroup < kInputs ? W::kGroup : kInputs;  // inputs that share a scale
      XF_UNROLL for (int first = 0; first < kInputs; first += kSame) {
        const int group = (k + first) / W::kGroup;
        if (group * W::kGroup < x.width) {
          Tile<Bn, Br> part_sums;
          fill(part_sums, 0.f);
          simd<float, Br> inputs = 0.f;
          add_steps<kSame / 16>(part_sums, inputs, rows, block, weights, k, first / 16);
          scale_part<true, T>(sums.x, part_sums, inputs, weights, group);
        }
      }
    }
  }
}

// ---- turns --------------------------------------------------------------------------------------

template <class Config>
constexpr int kTurnBytes = Products<Config>::Bn * Products<Config>::Br * 4;
template <class Config>
XF_INLINE void allocate_products() {
  static_assert(Group::turns * kTurnBytes<Config> <= kMostSharedBytes);
  if constexpr (Group::turns > 1) esimd::slm_init<Group::turns * kTurnBytes<Config>>();
}

// Number of outputs that a thread adds up and stores, once all threads have their partial sums.
template <class Config>
constexpr int kOwnOutputs = Config::outputs / Group::turns;

template <class Config, class W>
XF_INLINE void sums_of_turns(Products<Config>& sums, const W& weights) {
  using P = Products<Config>;
  if constexpr (W::kHasScales && W::kGroup == 0) {
    scale_part<false, typename Config::Element>(sums.x, sums.x, sums.inputs, weights, 0);
  }
  if constexpr (Group::turns > 1) {
    constexpr int kShare = kOwnOutputs<Config>, kRow = kLanes * 4, kChunk = P::Bn * kRow;
    const int turn = Group::turn();
    XF_UNROLL for (int c = 0; c < P::kBlocks; ++c) {
      XF_UNROLL for (int n = 0; n < P::Bn; n += 8) {
        simd<float, 8 * kLanes> some = part<8 * kLanes>(sums.x.x, (c * P::Bn + n) * kLanes);
        esimd::slm_block_store<float, 8 * kLanes>(turn * kTurnBytes<Config> + c * kChunk + n * kRow,
                                                  some);
      }
    }
    esimd::barrier();
    XF_UNROLL for (int c = 0; c < P::kBlocks; ++c) {
      XF_UNROLL for (int n = 0; n < kShare; ++n) {
        floats sum = 0.f;
        _Pragma("unroll 1") for (int t = 0; t < Group::turns; ++t) {
          sum += esimd::slm_block_load<float, kLanes>(t * kTurnBytes<Config> + c * kChunk +
                                                      (turn * kShare + n) * kRow);
        }
        sums.x.row(n, c) = sum;
      }
    }
  }
}

template <class Out, class T, class Config>
XF_INLINE void store_products(const Rows<Out>& out, const Products<Config>& sums, const T* bias,
                              int output) {
  constexpr int kShare = kOwnOutputs<Config>;
  using Bits = std::conditional_t<sizeof(Out) == 2, uint16_t, uint32_t>;
  const int first = output + Group::turn() * kShare;
  XF_UNROLL for (int n = 0; n < kShare; ++n) {
    if (first + n >= out.width) break;
    const float added = bias ? number_at(bias + first + n) : 0.f;
    XF_UNROLL for (int c = 0; c < Products<Config>::kBlocks; ++c) {
      const ints row = lane_index() + c * kLanes;
      simd<Out, kLanes> values = esimd::convert<Out>(floats(sums.x.row(n, c) + added));
      esimd::scatter<Bits, kLanes>(reinterpret_cast<Bits*>(out.row(c * kLanes) + first + n),
                                   Offsets<kLanes>(Offsets<kLanes>(lane_index()) *
                                                   static_cast<uint32_t>(out.stride * sizeof(Out))),
                                   simd<Bits, kLanes>(values.template bit_cast_view<Bits>()),
                                   row < out.size());
    }
  }
}

}  // namespace xeflash::xe
