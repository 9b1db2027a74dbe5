// Sine and cosine, with a polynomial each (Cephes' coefficients) around the nearest multiple of
// pi/2. GPUs have instructions for both, whose errors reach 8e-4.
// Word: fma  returns a b + c, rounded once
#pragma once

#include "tile/tile.hpp"

namespace xeflash {

struct Circle {
  Floats sine, cosine;
};

// Returns sine and cosine of an angle, with absolute errors below 1e-7 up to 2^20, and below 4e-7
// up to 2^22. Beyond, where floats are half a radian apart, an angle counts as 0. Those of inf and
// NaN are NaN.
XF_INLINE Circle circle(Floats angle) {
  const Floats x = select(magnitude(angle) < Floats(0x1p22f), angle, Floats(angle * 0.f));
  // Quarters of a turn: beside 1.5 * 2^23, floats are whole numbers.
  const Floats n = fma(x, Floats(0.636619772f), Floats(0x1.8p23f)) - Floats(0x1.8p23f);
  Floats r = fma(n, Floats(-1.57079637f), x);  // exact; pi/2 = 1.57079637 - 4.37113883e-8
  r = fma(n, Floats(4.37113883e-8f), r);
  const Floats z = r * r;
  Floats sine = fma(z, Floats(-1.9515295891e-4f), Floats(8.3321608736e-3f));
  sine = fma(z, sine, Floats(-1.6666654611e-1f));
  sine = fma(Floats(z * sine), r, r);
  Floats cosine = fma(z, Floats(2.443315711809948e-5f), Floats(-1.388731625493765e-3f));
  cosine = fma(z, cosine, Floats(4.166664568298827e-2f));
  cosine = fma(z, fma(z, cosine, Floats(-0.5f)), Floats(1.f));

  const Ints quarter = to_ints(n);
  const Bools odd = (quarter & 1) != 0;
  const Floats up = select(odd, cosine, sine), along = select(odd, sine, cosine);
  return {select(Bools((quarter & 2) != 0), Floats(-up), up),
          select(Bools(((quarter + 1) & 2) != 0), Floats(-along), along)};
}

}  // namespace xeflash
