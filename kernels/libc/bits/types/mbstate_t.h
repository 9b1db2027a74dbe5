// See ../../README.md. libc++ looks for this file by its name.
#pragma once

struct mbstate_t {
  int count;
  unsigned value;
};
