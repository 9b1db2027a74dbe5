// Reads a user's change to scores, or condition, as Python passes it: a snippet of C++, and its
// captures by name.
#pragma once

#include <string>
#include <vector>

#include "attention/params.hpp"
#include "host/arrays/array.hpp"
#include "host/arrays/checks.hpp"

namespace xeflash {

enum class ScoreModId : uint16_t { kNone };  // stands for a source

// The part of a score_mod that changes the code of a kernel.
struct ScoreModSource {
  struct Capture {
    std::string name, type;  // DType's name for an array; "float" or "int" for a number
    int rank;
  };
  std::string text;
  std::vector<Capture> captures;
};

// A snippet with its captures for one call.
struct ScoreModCall {
  ScoreModId id = ScoreModId::kNone;
  bool reads_batch = false, reads_head = false;
  Captures captures{};
  std::vector<Array> arrays;       // kept alive
  std::vector<std::string> names;  // names of the arrays
};

// `score_mod` is None or (text, {name: array or number}).
ScoreModCall read_score_mod(const py::object& score_mod, const Array& q, const Checker& check);

const ScoreModSource& score_mod_source(ScoreModId id);

}  // namespace xeflash
