// The decoder for tests and tools: machine code in, one JSON object per line and instruction out.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "capi/capi.hpp"
#include "isa/inst.hpp"
#include "isa/scoreboard.hpp"
#include "isa/text.hpp"

namespace {

using namespace xesim;

// Appends "key":value pairs, only those that differ from the usual.
struct InstWriter {
  std::string& out;
  bool first = true;
  explicit InstWriter(std::string& text) : out(text) { out += '{'; }
  void close() { out += '}'; }
  void key(const char* name) {
    if (!first) out += ',';
    first = false;
    out += '"';
    out += name;
    out += "\":";
  }
  void number(const char* name, int64_t value) {
    key(name);
    out += std::to_string(value);
  }
  void number_unless(const char* name, int64_t value, int64_t usual) {
    if (value != usual) number(name, value);
  }
  void word(const char* name, std::string_view value) {
    key(name);
    out += '"';
    for (char c : value) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    out += '"';
  }
};

void add_operand(std::string& out, const Operand& operand) {
  InstWriter json(out);
  json.word("file", file_name(operand.file));
  if (operand.type != Type::kNone) json.word("type", type_name(operand.type));
  if (operand.file == File::kImmediate) {
    constexpr const char* forms[] = {"scalar", "v", "uv", "vf"};
    char text[24];
    std::snprintf(text, sizeof text, "0x%" PRIx64, operand.immediate);
    json.word("imm", text);
    if (operand.form != ImmediateForm::kScalar)
      json.word("form", forms[static_cast<int>(operand.form)]);
    return json.close();
  }
  json.number("v", operand.vertical);
  json.number("w", operand.width);
  json.number("h", operand.horizontal);
  json.number_unless("abs", operand.absolute, 0);
  json.number_unless("neg", operand.negate, 0);
  json.number_unless("mme", operand.macro, 8);
  if (operand.indirect) {
    json.number("a", operand.address);
    json.number("off", operand.offset);
    json.number_unless("vxh", operand.vxh, 0);
  } else {
    json.number("num", operand.number);
    json.number("sub", operand.subregister);
    json.number("byte", operand.byte);
  }
  json.close();
}

void add_send(std::string& out, const SendInfo& send) {
  InstWriter json(out);
  json.word("sfid", sfid_name(send.sfid));
  json.number("desc", send.desc);
  json.number("exdesc", send.exdesc);
  json.number("len", send.src1_length);
  json.number_unless("eot", send.end_of_thread, 0);
  json.number_unless("desc_a0", send.desc_in_a0, 0);
  json.number_unless("bso", send.bss_offset, 0);
  if (send.exdesc_in_a0) json.number("exdesc_a0", send.exdesc_byte);
  json.close();
}

std::string_view function_name(const Inst& inst) {
  if (inst.op == Op::kMath) return math_name(static_cast<MathFn>(inst.function));
  if (inst.op == Op::kSync) return sync_name(static_cast<SyncFn>(inst.function));
  return {};
}

void add_instruction(std::string& out, const Isa& isa, const Inst& inst) {
  const OpcodeRow& row = row_of(inst.op);
  InstWriter json(out);
  json.number("ip", inst.ip);
  json.number("size", inst.size);
  json.word("op", row.name);
  json.word("text", disassemble(isa, inst));
  if (inst.op != Op::kNop && inst.op != Op::kIllegal) {
    json.number("es", inst.exec_size);
    json.number("eo", inst.channel_offset);
    json.number("flag", inst.flag);
    json.number_unless("nomask", inst.no_mask, 0);
    json.number_unless("sat", inst.saturate, 0);
    json.number_unless("accwr", inst.write_acc, 0);
    json.number_unless("atomic", inst.atomic, 0);
    json.number_unless("bctrl", inst.branch_ctrl, 0);
    if (inst.predicate != Predicate::kNone) json.word("pred", predicate_suffix(inst.predicate));
    json.number_unless("pinv", inst.predicate_inverse, 0);
    if (inst.condition != Condition::kNone) json.word("cond", condition_name(inst.condition));
    if (row.format == Format::kDpas) {
      json.number("depth", inst.systolic_depth);
      json.number("repeat", inst.repeat_count);
    }
    if (const auto name = function_name(inst); !name.empty())
      json.word("fn", name);
    else if (inst.op == Op::kBfn)
      json.number("lut", inst.function);
    if (row.format == Format::kBranch || row.format == Format::kCall) json.number("jip", inst.jip);
    if (row.format == Format::kBranch) json.number("uip", inst.uip);
    const std::string waits = to_string(scoreboard_of(isa, inst));
    if (!waits.empty()) json.word("waits", waits);
    if (inst.dst.file != File::kNone) {
      json.key("dst");
      add_operand(out, inst.dst);
    }
    json.key("src");
    out += '[';
    for (size_t i = 0; i < inst.src.size() && inst.src[i].file != File::kNone; ++i) {
      if (i != 0) out += ',';
      add_operand(out, inst.src[i]);
    }
    out += ']';
    if (row.format == Format::kSend) {
      json.key("send");
      add_send(out, inst.send);
    }
  }
  json.close();
}

const Isa* isa_named(std::string_view name) {
  for (const Family family : kFamilies) {
    if (name == isa_of(family).name) return &isa_of(family);
  }
  return nullptr;
}

char* to_c(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace

// Null if the family ("dg2", "pvc", "bmg", "ptl") is not known. An instruction that does not decode
// gives
// {"ip":..,"size":..,"error":".."}, and the next one follows after its size. Free with xesim_free.
XESIM_API char* xesim_decode(const char* family, const uint8_t* code, uint64_t bytes) {
  const Isa* isa = family == nullptr ? nullptr : isa_named(family);
  if (isa == nullptr || (code == nullptr && bytes != 0)) return nullptr;
  std::string out, error;
  for (uint64_t ip = 0; ip < bytes;) {
    Inst inst;
    if (decode(*isa, {code + ip, bytes - ip}, static_cast<uint32_t>(ip), inst, error)) {
      add_instruction(out, *isa, inst);
    } else {
      InstWriter json(out);
      json.number("ip", static_cast<int64_t>(ip));
      json.number("size", inst.size);
      json.word("error", error);
      json.close();
    }
    out += '\n';
    ip += inst.size;
  }
  return to_c(out);
}

// The opcode table: {"code":..,"op":..,"sources":..} lines.
XESIM_API char* xesim_opcodes() {
  std::string out;
  for (const OpcodeRow& row : opcode_table()) {
    InstWriter json(out);
    json.number("code", row.code);
    json.word("op", row.name);
    json.number("sources", row.sources);
    json.close();
    out += '\n';
  }
  return to_c(out);
}

// The 16 bytes of a compacted instruction; 0 if it has no meaning.
XESIM_API int xesim_expand(const char* family, uint64_t compacted, uint64_t* bits) {
  const Isa* isa = family == nullptr ? nullptr : isa_named(family);
  std::array<uint64_t, 2> full{};
  if (isa == nullptr || bits == nullptr || !expand(*isa, compacted, full)) return 0;
  bits[0] = full[0];
  bits[1] = full[1];
  return 1;
}

// Decodes all of it and keeps nothing, to measure speed; the number of instructions refused.
XESIM_API uint64_t xesim_decode_count_errors(const char* family, const uint8_t* code,
                                             uint64_t bytes) {
  const Isa* isa = family == nullptr ? nullptr : isa_named(family);
  if (isa == nullptr || code == nullptr) return ~uint64_t{0};
  std::string error;
  uint64_t errors = 0;
  Inst inst;
  for (uint64_t ip = 0; ip < bytes; ip += inst.size) {
    errors += !decode(*isa, {code + ip, bytes - ip}, static_cast<uint32_t>(ip), inst, error);
  }
  return errors;
}

XESIM_API void xesim_free(char* text) { std::free(text); }
