// The static side of a native binary: what its kernels consist of.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "base/json.hpp"
#include "capi/capi.hpp"
#include "insns/executor.hpp"
#include "isa/inst_class.hpp"
#include "isa/text.hpp"
#include "zebin/zebin.hpp"

namespace xesim {
namespace {

// Instructions up to the last end of thread: what follows is padding.
size_t code_length(const Program& program) {
  for (size_t i = program.insts.size(); i-- > 0;) {
    if (program.insts[i].send.end_of_thread && program.insts[i].op == Op::kSend) return i + 1;
  }
  return program.insts.size();
}

std::string message_kind(const Inst& inst) {
  const std::string words = message_text(inst.send);
  if (inst.send.end_of_thread) return "end of thread";
  return words.empty() ? std::string(sfid_name(inst.send.sfid)) + " (other)" : words;
}

// The instructions of a backward branch's body that holds the most dpas (or else is the longest):
// the main loop.
std::pair<size_t, size_t> main_loop(const Program& program, size_t length) {
  std::pair<size_t, size_t> best{0, 0};
  size_t most = 0;
  for (size_t i = 0; i < length; ++i) {
    const Inst& inst = program.insts[i];
    if (inst.op != Op::kJmpi && inst.op != Op::kGoto && inst.op != Op::kWhile) continue;
    const int32_t offset = inst.op == Op::kGoto ? inst.uip : inst.jip;
    if (offset >= 0) continue;
    const uint32_t target = inst.ip + static_cast<uint32_t>(offset);
    if (target / 8 >= program.index_of.size() || program.index_of[target / 8] < 0) continue;
    const size_t first = static_cast<size_t>(program.index_of[target / 8]);
    const auto is_dpas = [](const Inst& x) { return x.op == Op::kDpas; };
    const size_t dpas = static_cast<size_t>(
        std::count_if(program.insts.begin() + static_cast<ptrdiff_t>(first),
                      program.insts.begin() + static_cast<ptrdiff_t>(i) + 1, is_dpas));
    // Of nested loops with the same dpas the innermost counts; without dpas the longest.
    const size_t weight = dpas != 0 ? dpas * 1'000'000 - (i - first) : i - first;
    if (weight > most) {
      most = weight;
      best = {first, i + 1};
    }
  }
  return best;
}

std::string mix(const Program& program, size_t first, size_t last) {
  std::array<uint64_t, kInstClasses> classes{};
  std::map<std::string, uint64_t> opcodes, messages;
  uint64_t rows = 0;
  for (size_t i = first; i < last; ++i) {
    const Inst& inst = program.insts[i];
    ++classes[static_cast<size_t>(class_of(inst))];
    ++opcodes[row_of(inst.op).name];
    if (inst.op == Op::kDpas) rows += inst.repeat_count;
    if (inst.op == Op::kSend || inst.op == Op::kSendc) ++messages[message_kind(inst)];
  }
  JsonObject json;
  json.number("instructions", uint64_t{last - first});
  for (size_t c = 0; c < classes.size(); ++c) json.number(kClassNames[c], classes[c]);
  json.number("dpas_rows", rows);
  JsonObject by_opcode, by_message;
  for (const auto& [name, n] : opcodes) by_opcode.number(name.c_str(), n);
  for (const auto& [name, n] : messages) by_message.number(name.c_str(), n);
  return json.raw("opcodes", by_opcode.done()).raw("messages", by_message.done()).done();
}

std::string inspect(const std::string& family_name, std::span<const uint8_t> file) {
  const Family family = family_named(family_name);
  const Isa& isa = isa_of(family);
  JsonList kernels;
  for (const KernelCode& code : read_zebin(file, family).kernels) {
    const Program program = decode_program(isa, code.text, code.info.grf_count);
    const size_t length = code_length(program);
    int registers = 0;
    uint64_t compacted = 0;
    for (size_t i = 0; i < length; ++i) {
      const Inst& inst = program.insts[i];
      compacted += inst.size == 8;
      for (const Operand* o : {&inst.dst, &inst.src[0], &inst.src[1], &inst.src[2]}) {
        if (o->file == File::kGrf && !o->indirect) registers = std::max(registers, o->number + 1);
      }
    }
    JsonObject json;
    json.string("name", code.info.name)
        .number("simd", static_cast<uint64_t>(code.info.simd_size))
        .number("grf", static_cast<uint64_t>(code.info.grf_count))
        .number("registers_named", static_cast<uint64_t>(registers))
        .number("slm", uint64_t{code.info.slm_size})
        .number("barriers", static_cast<uint64_t>(code.info.barrier_count))
        .number("scratch", uint64_t{code.info.scratch_bytes})
        .number("spill", uint64_t{code.info.spill_bytes})
        .number("private", uint64_t{code.info.private_bytes})
        .number("code_bytes", uint64_t{length == 0 ? 0
                                                   : program.insts[length - 1].ip +
                                                         program.insts[length - 1].size})
        .number("compacted", compacted)
        .raw("all", mix(program, 0, length));
    const auto [first, last] = main_loop(program, length);
    if (last != 0) json.raw("loop", mix(program, first, last));
    std::string unknown;
    for (size_t i = 0; i < length && unknown.empty(); ++i) unknown = program.errors[i];
    json.string("first_unknown", unknown);
    kernels.item(json.done());
  }
  return kernels.done();
}

}  // namespace
}  // namespace xesim

// A JSON list of the kernels, or {"error": text}; to be freed with xesim_free.
XESIM_API char* xesim_inspect(const char* family, const uint8_t* file, uint64_t bytes) {
  std::string text;
  try {
    text = xesim::inspect(family, {file, bytes});
  } catch (const std::exception& error) {
    text = xesim::JsonObject().string("error", error.what()).done();
  }
  return strdup(text.c_str());
}

// Vector engines of a device; 0: there is none of that name.
XESIM_API uint32_t xesim_vector_engines(const char* device) {
  try {
    const auto& model = xesim::driver::model_named(device);
    return model.cores() * model.xve_per_core;
  } catch (const xesim::Fault&) {
    return 0;
  }
}
