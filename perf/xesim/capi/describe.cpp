// What the reader of native binaries found, as JSON for tests and tools.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/hash.hpp"
#include "base/json.hpp"
#include "capi/capi.hpp"
#include "zebin/zebin.hpp"

namespace xesim {
namespace {

constexpr const char* kArgTypes[] = {
    "pointer",       "value",         "local_size",    "enqueued_local_size",
    "group_count",   "global_size",   "global_offset", "work_dimensions",
    "buffer_offset", "buffer_size",   "const_base",    "global_base",
    "private_base",  "implicit_args", "printf_buffer", "unused_pointer"};
constexpr const char* kModes[] = {"stateless", "bindless", "stateful", "slm"};

std::string describe(const std::vector<Relocation>& relocations) {
  JsonList all;
  for (const Relocation& relocation : relocations) {
    JsonObject one;
    one.number("offset", relocation.offset);
    one.number("type", uint64_t{relocation.type});
    one.string("symbol", relocation.symbol);
    one.raw("is_function", relocation.is_function ? "true" : "false");
    one.string("section", relocation.section);
    one.number("value", relocation.value);
    all.item(one.done());
  }
  return all.done();
}

std::string describe(const PayloadArg& argument) {
  JsonObject one;
  one.string("type", kArgTypes[static_cast<int>(argument.type)]);
  one.string("mode", kModes[static_cast<int>(argument.mode)]);
  one.raw("index", std::to_string(argument.index));
  one.number("offset", uint64_t{argument.offset});
  one.number("size", uint64_t{argument.size});
  one.number("source_offset", uint64_t{argument.source_offset});
  one.number("slm_alignment", uint64_t{argument.slm_alignment});
  return one.done();
}

std::string describe(const KernelCode& code) {
  const KernelInfo& info = code.info;
  JsonObject one;
  one.string("name", info.name);
  one.number("grf_count", static_cast<uint64_t>(info.grf_count));
  one.number("simd_size", static_cast<uint64_t>(info.simd_size));
  one.number("barrier_count", static_cast<uint64_t>(info.barrier_count));
  one.number("slm_size", uint64_t{info.slm_size});
  one.number("inline_data", uint64_t{info.inline_data});
  one.number("skip_per_thread_load", uint64_t{info.skip_per_thread_load});
  JsonList required;
  for (const uint32_t size : info.required_group_size) required.item(std::to_string(size));
  one.raw("required_group_size", required.done());
  one.number("required_sub_group_size", static_cast<uint64_t>(info.required_sub_group_size));
  one.raw("has_dpas", info.has_dpas ? "true" : "false");
  one.raw("require_implicit_args", info.require_implicit_args ? "true" : "false");
  one.raw("packed_local_ids", info.packed_local_ids ? "true" : "false");
  one.number("local_id_bytes", uint64_t{info.local_id_bytes});
  one.number("scratch_bytes", uint64_t{info.scratch_bytes});
  one.number("spill_bytes", uint64_t{info.spill_bytes});
  one.number("private_bytes", uint64_t{info.private_bytes});
  one.number("argument_count", static_cast<uint64_t>(info.argument_count()));
  JsonList payload;
  for (const PayloadArg& argument : info.payload) payload.item(describe(argument));
  one.raw("payload", payload.done());
  JsonList table;
  for (const auto& [index, argument] : info.binding_table) {
    table.item('[' + std::to_string(index) + ',' + std::to_string(argument) + ']');
  }
  one.raw("binding_table", table.done());
  one.number("text_bytes", code.text.size());
  one.number("text_hash", hash_of(code.text));
  one.raw("relocations", describe(code.relocations));
  return one.done();
}

std::string describe(const Zebin& zebin) {
  JsonObject all;
  all.string("family", isa_of(zebin.family).name);
  JsonList kernels;
  for (const KernelCode& code : zebin.kernels) kernels.item(describe(code));
  all.raw("kernels", kernels.done());
  JsonObject data;
  for (const auto& [name, section] : zebin.data) {
    JsonObject one;
    one.number("bytes", section.bytes.size());
    one.number("hash", hash_of(section.bytes));
    one.number("zeros", section.zeros);
    data.raw(name.c_str(), one.done());
  }
  all.raw("data", data.done());
  all.number("functions_bytes", zebin.functions.size());
  all.raw("function_relocations", describe(zebin.function_relocations));
  return all.done();
}

}  // namespace
}  // namespace xesim

XESIM_API char* xesim_describe(const char* family, const uint8_t* file, uint64_t bytes) {
  std::string text;
  try {
    text = xesim::describe(xesim::read_zebin({file, bytes}, xesim::family_named(family)));
  } catch (const std::exception& error) {
    text = xesim::JsonObject().string("error", error.what()).done();
  }
  return strdup(text.c_str());
}
