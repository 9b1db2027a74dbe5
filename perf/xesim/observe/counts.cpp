#include "observe/counts.hpp"

#include "insns/dpas.hpp"
#include "machine/thread.hpp"

namespace xesim {
namespace {

// In the order of InstClass.
constexpr uint64_t LaunchRecord::* kOfClass[kInstClasses] = {
    &LaunchRecord::dpas,      &LaunchRecord::math,        &LaunchRecord::moves,
    &LaunchRecord::float_alu, &LaunchRecord::integer_alu, &LaunchRecord::control,
    &LaunchRecord::sync,      &LaunchRecord::sends};

uint64_t multiply_adds(const Isa& isa, const Inst& inst) {
  const Type a = inst.src[2].type, b = inst.src[1].type;
  const int ops = a == Type::kTF32                         ? 1
                  : is_float(a)                            ? 2
                  : type_bits(a) <= 4 && type_bits(b) <= 4 ? 8
                                                           : 4;
  return static_cast<uint64_t>(inst.repeat_count * isa.dpas_lanes * 8 * ops);
}

}  // namespace

void Counts::on_message(const Thread& thread, const MessageEvent& event) {
  LaunchRecord& counts = messages_[thread.worker->index];
  counts.block2d_small_surfaces += event.narrow_surface;
  uint64_t bytes = 0;
  for (const Piece& piece : event.pieces) bytes += piece.bytes;
  if (event.access == Access::kPrefetch) {
    counts.prefetch_bytes += bytes;
    return;
  }
  const uint64_t read = event.access == Access::kWrite ? 0 : bytes;
  const uint64_t written = event.access == Access::kRead ? 0 : bytes;
  switch (event.space) {
    case Space::kPayload:
      return;  // the launch's arguments are not the kernel's traffic
    case Space::kGlobal:
      counts.global_read += read;
      counts.global_written += written;
      break;
    case Space::kSlm:
      counts.slm_read += read;
      counts.slm_written += written;
      break;
    case Space::kScratch:
      counts.scratch_read += read;
      counts.scratch_written += written;
      break;
  }
  switch (event.traffic) {
    case Traffic::kGather:
      counts.gather_read += read;
      counts.scatter_written += written;
      break;
    case Traffic::kBlock:
      counts.block_read += read;
      counts.block_written += written;
      break;
    case Traffic::kBlock2d:
      counts.block2d_read += read;
      counts.block2d_written += written;
      break;
    case Traffic::kAtomic:
      counts.atomic_bytes += bytes;
      break;
  }
}

void Counts::on_barrier(const Thread& thread, int, BarrierStep step) {
  if (step == BarrierStep::kSignal || step == BarrierStep::kSignalConsumer)
    ++messages_[thread.worker->index].barriers;
}

void Counts::report(LaunchRecord& record) {
  for (const LaunchRecord& messages : messages_) record += messages;
  uint64_t dpas_rows = 0;
  for (size_t i = 0; i < program_.insts.size(); ++i) {
    uint64_t n = 0;
    for (const Worker& worker : workers_) n += worker.executed[i];
    const Inst& inst = program_.insts[i];
    const InstClass inst_class = class_of(inst);
    if (listing_ && n != 0) {
      record.listing.push_back({inst.ip, n, kClassNames[static_cast<size_t>(inst_class)],
                                disassemble(*program_.isa, inst)});
    }
    record.instructions += n;
    record.*kOfClass[static_cast<size_t>(inst_class)] += n;
    if (inst_class != InstClass::kDpas) continue;
    dpas_rows += n * inst.repeat_count;
    // dg2's work-around instructions multiply nothing.
    if (program_.execute[i] != dpas_nothing)
      record.dpas_macs += n * multiply_adds(*program_.isa, inst);
  }
  record.dpas_useful =
      record.dpas == 0 ? 1.0
                       : static_cast<double>(dpas_rows) / (8.0 * static_cast<double>(record.dpas));
}

}  // namespace xesim
