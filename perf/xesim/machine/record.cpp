#include "machine/record.hpp"

#include <deque>
#include <mutex>

#include "capi/json.hpp"
#include "insns/common.hpp"
#include "insns/dpas.hpp"

namespace xesim {
namespace {

constexpr size_t kKept = 4096;
std::mutex g_mutex;
std::deque<LaunchRecord>& kept() {
  static std::deque<LaunchRecord> records;
  return records;
}

uint64_t multiply_adds(const Isa& isa, const Inst& inst) {
  const Type a = inst.src[2].type, b = inst.src[1].type;
  const int ops = a == Type::kTF32                         ? 1
                  : is_float(a)                            ? 2
                  : type_bits(a) <= 4 && type_bits(b) <= 4 ? 8
                                                           : 4;
  return static_cast<uint64_t>(inst.repeat_count * isa.dpas_lanes * 8 * ops);
}

}  // namespace

InstClass class_of(const Inst& inst) {
  switch (inst.op) {
    case Op::kDpas:
    case Op::kDpasw:
      return InstClass::kDpas;
    case Op::kMath:
      return InstClass::kMath;
    case Op::kMov:
    case Op::kMovi:
      return InstClass::kMove;
    case Op::kSend:
    case Op::kSendc:
      return InstClass::kSend;
    case Op::kSync:
    case Op::kNop:
      return InstClass::kSync;
    default:
      break;
  }
  if (row_of(inst.op).format == Format::kBranch || inst.op == Op::kCall || inst.op == Op::kRet)
    return InstClass::kControl;
  return has_float_source(inst) ? InstClass::kFloat : InstClass::kInteger;
}

void count_instructions(const Program& program, const std::vector<Worker>& workers,
                        LaunchRecord& record) {
  uint64_t dpas_rows = 0;
  for (size_t i = 0; i < program.insts.size(); ++i) {
    uint64_t n = 0;
    for (const Worker& worker : workers) n += worker.executed[i];
    if (n == 0) continue;
    const Inst& inst = program.insts[i];
    record.instructions += n;
    switch (class_of(inst)) {
      case InstClass::kDpas:
        record.dpas += n;
        // dg2's work-around instructions multiply nothing.
        if (program.execute[i] != dpas_nothing)
          record.dpas_macs += n * multiply_adds(*program.isa, inst);
        dpas_rows += n * inst.repeat_count;
        break;
      case InstClass::kMath:
        record.math += n;
        break;
      case InstClass::kMove:
        record.moves += n;
        break;
      case InstClass::kFloat:
        record.float_alu += n;
        break;
      case InstClass::kInteger:
        record.integer_alu += n;
        break;
      case InstClass::kControl:
        record.control += n;
        break;
      case InstClass::kSync:
        record.sync += n;
        break;
      case InstClass::kSend:
        record.sends += n;
        break;
    }
  }
  uint64_t ticks = 0;
  for (const Worker& worker : workers) {
    for (const uint64_t t : worker.class_ticks) ticks += t;
  }
  for (size_t c = 0; c < record.simulation_class_share.size() && ticks != 0; ++c) {
    for (const Worker& worker : workers) {
      record.simulation_class_share[c] +=
          static_cast<double>(worker.class_ticks[c]) / static_cast<double>(ticks);
    }
  }
  if (record.dpas != 0)
    record.dpas_useful = static_cast<double>(dpas_rows) / (8.0 * static_cast<double>(record.dpas));
  for (const Worker& worker : workers) {
    const MessageCounts& c = worker.counts;
    record.block2d_read += c.block2d_read;
    record.block2d_written += c.block2d_written;
    record.block_read += c.block_read;
    record.block_written += c.block_written;
    record.gather_read += c.gather_read;
    record.scatter_written += c.scatter_written;
    record.atomic_bytes += c.atomic_bytes;
    record.prefetch_bytes += c.prefetch_bytes;
    record.global_read += c.global_read;
    record.global_written += c.global_written;
    record.slm_read += c.slm_read;
    record.slm_written += c.slm_written;
    record.scratch_read += c.scratch_read;
    record.scratch_written += c.scratch_written;
    record.barriers += c.barriers;
    record.block2d_small_surfaces += c.block2d_small_surfaces;
  }
}

void keep_record(LaunchRecord record) {
  const std::lock_guard lock(g_mutex);
  kept().push_back(std::move(record));
  if (kept().size() > kKept) kept().pop_front();
}

std::vector<LaunchRecord> last_launches() {
  const std::lock_guard lock(g_mutex);
  return {kept().begin(), kept().end()};
}

void clear_launches() {
  const std::lock_guard lock(g_mutex);
  kept().clear();
}

std::string to_json(const LaunchRecord& r) {
  const auto triple = [](const std::array<uint32_t, 3>& v) {
    return "[" + std::to_string(v[0]) + "," + std::to_string(v[1]) + "," + std::to_string(v[2]) +
           "]";
  };
  JsonObject json;
  json.string("kernel", r.kernel)
      .string("device", r.device)
      .raw("groups", triple(r.groups))
      .raw("local", triple(r.local));
  json.number("simd", static_cast<uint64_t>(r.simd));
  json.number("grf", static_cast<uint64_t>(r.grf));
  json.number("threads", r.threads);
  json.number("instructions", r.instructions);
  json.number("dpas", r.dpas);
  json.number("math", r.math);
  json.number("moves", r.moves);
  json.number("float_alu", r.float_alu);
  json.number("integer_alu", r.integer_alu);
  json.number("control", r.control);
  json.number("sync", r.sync);
  json.number("sends", r.sends);
  json.number("dpas_macs", r.dpas_macs);
  json.number("dpas_useful", r.dpas_useful);
  json.number("barriers", r.barriers);
  json.number("block2d_read", r.block2d_read);
  json.number("block2d_written", r.block2d_written);
  json.number("block_read", r.block_read);
  json.number("block_written", r.block_written);
  json.number("gather_read", r.gather_read);
  json.number("scatter_written", r.scatter_written);
  json.number("atomic_bytes", r.atomic_bytes);
  json.number("prefetch_bytes", r.prefetch_bytes);
  json.number("global_read", r.global_read);
  json.number("global_written", r.global_written);
  json.number("lines_read", r.lines_read);
  json.number("lines_written", r.lines_written);
  json.number("slm_read", r.slm_read);
  json.number("slm_written", r.slm_written);
  json.number("scratch_read", r.scratch_read);
  json.number("scratch_written", r.scratch_written);
  json.number("block2d_small_surfaces", r.block2d_small_surfaces);
  json.number("slm_size", uint64_t{r.slm_size});
  json.number("spill_bytes", uint64_t{r.spill_bytes});
  json.number("scratch_size", uint64_t{r.scratch_size});
  json.number("simulation_seconds", r.simulation_seconds);
  json.number("simulation_threads", static_cast<uint64_t>(r.simulation_threads));
  JsonList shares;
  for (const double share : r.simulation_class_share) shares.item(std::to_string(share));
  return json.raw("simulation_class_share", shares.done()).done();
}

}  // namespace xesim
