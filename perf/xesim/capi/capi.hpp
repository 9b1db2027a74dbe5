// What all functions of the C interface share. Texts that they return are malloc'ed, to be freed
// with xesim_free, unless they say otherwise.
#pragma once

#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include "isa/inst.hpp"
#include "machine/fault.hpp"

#define XESIM_API extern "C" __attribute__((visibility("default")))

namespace xesim {

inline Family family_named(std::string_view name) {
  for (const Family family : {Family::kDg2, Family::kPvc, Family::kBmg}) {
    if (name == isa_of(family).name) return family;
  }
  fail("the device must be dg2, pvc or bmg, got '%s'", std::string(name).c_str());
}

// Null, or the text of what `body` threw.
template <class F>
char* guarded(F&& body) {
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    return strdup(error.what());
  }
}

}  // namespace xesim
