#pragma once

namespace xeflash {

constexpr int larger(int a, int b) { return a > b ? a : b; }

constexpr float kInf = __builtin_inff();
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kMostFinite = 0x1.fffffep127f;
// The running maximum of a row that has seen no key: no finite score is below it.
constexpr float kNoScore = -kMostFinite;
// P is at most 2^kSlack, and 2^-kHeadroom times that beside values in bf16: see
// attention/softmax.hpp.
constexpr int kSlack = 8, kHeadroom = 32;

}  // namespace xeflash
