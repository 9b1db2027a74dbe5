// What the reader of native binaries found, as JSON for tests and tools.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "machine/fault.hpp"
#include "zebin/zebin.hpp"

namespace xesim {
namespace {

// Bytes outside ASCII are written as if they were Latin-1: names stay readable, the text stays
// JSON.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto code = static_cast<uint8_t>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (code < 0x20 || code >= 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", code);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

// A list or an object whose parts are written already.
class Joiner {
 public:
  Joiner(char open, char close) : text_(1, open), close_(close) {}
  void item(const std::string& json) {
    if (text_.size() > 1) text_ += ',';
    text_ += json;
  }
  void field(const char* key, const std::string& json) { item(quoted(key) + ':' + json); }
  void field(const char* key, uint64_t value) { field(key, std::to_string(value)); }
  std::string done() { return text_ + close_; }

 private:
  std::string text_;
  char close_;
};
Joiner list() { return {'[', ']'}; }
Joiner object() { return {'{', '}'}; }

// FNV-1a, to compare the bytes of a section without writing them.
uint64_t hash_of(const std::vector<uint8_t>& bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

constexpr const char* kArgTypes[] = {
    "pointer",       "value",         "local_size",    "enqueued_local_size",
    "group_count",   "global_size",   "global_offset", "work_dimensions",
    "buffer_offset", "buffer_size",   "const_base",    "global_base",
    "private_base",  "implicit_args", "printf_buffer", "unused_pointer"};
constexpr const char* kModes[] = {"stateless", "bindless", "stateful", "slm"};

std::string describe(const std::vector<Relocation>& relocations) {
  Joiner all = list();
  for (const Relocation& relocation : relocations) {
    Joiner one = object();
    one.field("offset", relocation.offset);
    one.field("type", uint64_t{relocation.type});
    one.field("symbol", quoted(relocation.symbol));
    one.field("is_function", relocation.is_function ? "true" : "false");
    one.field("section", quoted(relocation.section));
    one.field("value", relocation.value);
    all.item(one.done());
  }
  return all.done();
}

std::string describe(const PayloadArg& argument) {
  Joiner one = object();
  one.field("type", quoted(kArgTypes[static_cast<int>(argument.type)]));
  one.field("mode", quoted(kModes[static_cast<int>(argument.mode)]));
  one.field("index", std::to_string(argument.index));
  one.field("offset", uint64_t{argument.offset});
  one.field("size", uint64_t{argument.size});
  one.field("source_offset", uint64_t{argument.source_offset});
  one.field("slm_alignment", uint64_t{argument.slm_alignment});
  return one.done();
}

std::string describe(const KernelCode& code) {
  const KernelInfo& info = code.info;
  Joiner one = object();
  one.field("name", quoted(info.name));
  one.field("grf_count", static_cast<uint64_t>(info.grf_count));
  one.field("simd_size", static_cast<uint64_t>(info.simd_size));
  one.field("barrier_count", static_cast<uint64_t>(info.barrier_count));
  one.field("slm_size", uint64_t{info.slm_size});
  one.field("inline_data", uint64_t{info.inline_data});
  one.field("skip_per_thread_load", uint64_t{info.skip_per_thread_load});
  Joiner required = list();
  for (const uint32_t size : info.required_group_size) required.item(std::to_string(size));
  one.field("required_group_size", required.done());
  one.field("required_sub_group_size", static_cast<uint64_t>(info.required_sub_group_size));
  one.field("has_dpas", info.has_dpas ? "true" : "false");
  one.field("require_implicit_args", info.require_implicit_args ? "true" : "false");
  one.field("packed_local_ids", info.packed_local_ids ? "true" : "false");
  one.field("local_id_bytes", uint64_t{info.local_id_bytes});
  one.field("scratch_bytes", uint64_t{info.scratch_bytes});
  one.field("spill_bytes", uint64_t{info.spill_bytes});
  one.field("private_bytes", uint64_t{info.private_bytes});
  one.field("argument_count", static_cast<uint64_t>(info.argument_count()));
  Joiner payload = list();
  for (const PayloadArg& argument : info.payload) payload.item(describe(argument));
  one.field("payload", payload.done());
  Joiner table = list();
  for (const auto& [index, argument] : info.binding_table) {
    table.item('[' + std::to_string(index) + ',' + std::to_string(argument) + ']');
  }
  one.field("binding_table", table.done());
  one.field("text_bytes", code.text.size());
  one.field("text_hash", hash_of(code.text));
  one.field("relocations", describe(code.relocations));
  return one.done();
}

std::string describe(const Zebin& zebin) {
  Joiner all = object();
  all.field("family", quoted(isa_of(zebin.family).name));
  Joiner kernels = list();
  for (const KernelCode& code : zebin.kernels) kernels.item(describe(code));
  all.field("kernels", kernels.done());
  Joiner data = object();
  for (const auto& [name, section] : zebin.data) {
    Joiner one = object();
    one.field("bytes", section.bytes.size());
    one.field("hash", hash_of(section.bytes));
    one.field("zeros", section.zeros);
    data.field(name.c_str(), one.done());
  }
  all.field("data", data.done());
  all.field("functions_bytes", zebin.functions.size());
  all.field("function_relocations", describe(zebin.function_relocations));
  return all.done();
}

Family family_of(std::string_view name) {
  for (const Family family : {Family::kDg2, Family::kPvc, Family::kBmg}) {
    if (name == isa_of(family).name) return family;
  }
  fail("unknown family %s", std::string(name).c_str());
}

}  // namespace
}  // namespace xesim

// The caller frees the text with xesim_free.
extern "C" __attribute__((visibility("default"))) char* xesim_describe(const char* family,
                                                                       const uint8_t* file,
                                                                       uint64_t bytes) {
  std::string text;
  try {
    text = xesim::describe(xesim::read_zebin({file, bytes}, xesim::family_of(family)));
  } catch (const std::exception& error) {
    text = "{\"error\":" + xesim::quoted(error.what()) + "}";
  }
  return strdup(text.c_str());
}
