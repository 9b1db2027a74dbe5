// Control flow. Every lane that leaves the path waits at an address (lane_ip) until a join there
// enables it again.
#pragma once

#include "insns/common.hpp"

namespace xesim {

inline void require_predicate(const Thread& t, const Inst& inst, uint32_t lanes) {
  if (!t.track || (t.defined_predicate(inst) & lanes) == lanes) return;
  fail("the predicate f%d.%d of this branch was never given a value in lanes 0x%x", inst.flag >> 1,
       inst.flag & 1, lanes & ~t.defined_predicate(inst));
}
inline void jump(Thread& t, const Inst& inst, int32_t offset) {
  t.ip = inst.ip + static_cast<uint32_t>(offset);
}
// Lanes of this instruction's width that are enabled, shifted to their place in the execution mask.
inline uint32_t enabled_lanes(const Thread& t, const Inst& inst) {
  return t.execution_mask & all_lanes(inst.exec_size) << inst.channel_offset;
}

inline void jmpi(Thread& t, const Inst& inst) {
  Inst scalar = inst;
  scalar.no_mask = true;
  scalar.exec_size = 1;
  require_predicate(t, scalar, 1);
  if (t.active_lanes(scalar) & 1) jump(t, inst, inst.jip);
}

// Branches are decided by the lanes of their own width: dg2's ESIMD threads are dispatched with 32
// lanes and branch with 16, all at once; the other lanes come along.
//
// Taken lanes wait at UIP. The backward form (BranchCtrl) goes to UIP with the taken lanes, the
// others wait at JIP.
inline void goto_(Thread& t, const Inst& inst) {
  const uint32_t enabled = enabled_lanes(t, inst);
  require_predicate(t, inst, enabled >> inst.channel_offset);
  const uint32_t taken = t.active_lanes(inst) << inst.channel_offset & enabled;
  const uint32_t away = inst.branch_ctrl ? enabled & ~taken : taken;
  const int32_t waits_at = inst.branch_ctrl ? inst.jip : inst.uip;
  if (inst.branch_ctrl && taken == 0) return;
  for (int lane = 0; lane < 32; ++lane) {
    if (away >> lane & 1)
      t.lane_ip[static_cast<size_t>(lane)] = inst.ip + static_cast<uint32_t>(waits_at);
  }
  t.execution_mask &= ~away;
  if (inst.branch_ctrl)
    jump(t, inst, inst.uip);
  else if (enabled_lanes(t, inst) == 0)
    jump(t, inst, inst.jip);
}

inline void join(Thread& t, const Inst& inst) {
  for (int lane = 0; lane < 32; ++lane) {
    if ((t.dispatch_mask >> lane & 1) != 0 && (t.execution_mask >> lane & 1) == 0 &&
        t.lane_ip[static_cast<size_t>(lane)] == inst.ip) {
      t.execution_mask |= 1u << lane;
      t.lane_ip[static_cast<size_t>(lane)] = ~0u;
    }
  }
  if (enabled_lanes(t, inst) == 0) jump(t, inst, inst.jip);
}

// The address of the next instruction, then the execution mask, go to dst.
inline void call(Thread& t, const Inst& inst) {
  const uint32_t enabled = enabled_lanes(t, inst);
  require_predicate(t, inst, enabled >> inst.channel_offset);
  const uint32_t taken = t.active_lanes(inst) << inst.channel_offset;
  if (taken == 0 && !inst.no_mask) return;
  if (taken != t.execution_mask && inst.predicate != Predicate::kNone) {
    fail("a call that only some of the enabled lanes take is not implemented");
  }
  t.write<uint32_t>(inst.dst.byte, inst.ip + inst.size);
  t.write<uint32_t>(inst.dst.byte + 4, t.execution_mask);
  t.define(inst.dst.byte, 8);
  jump(t, inst, inst.jip);
}
inline void ret(Thread& t, const Inst& inst) {
  if (inst.predicate != Predicate::kNone) fail("a predicated ret is not implemented");
  t.require_defined(inst.src[0].byte, 8, "src0 (return address)");
  t.ip = t.read<uint32_t>(inst.src[0].byte);
  t.execution_mask = t.read<uint32_t>(inst.src[0].byte + 4);
}

// sync.bar waits for a barrier; the other forms order what here is in order anyway.
inline void sync(Thread& t, const Inst& inst) {
  if (static_cast<SyncFn>(inst.function) != SyncFn::kBar) return;
  int id = 0;
  const Operand& o = inst.src[0];
  if (o.file == File::kImmediate) {
    id = static_cast<int>(o.immediate & 0xff);
  } else if (o.file == File::kFlag) {
    if (t.track && (t.flag_defined[o.byte / 4] >> o.byte % 4 * 8 & 0xff) != 0xff) {
      fail("src0 (barrier id) of sync.bar was never given a value");
    }
    id = static_cast<int>(t.flag[o.byte / 4] >> o.byte % 4 * 8 & 0xff);
  } else if (o.exists()) {
    fail("sync.bar takes its barrier id from an immediate or a flag");
  }
  if (!t.group->barriers.wait(t, id))
    t.ip = inst.ip;  // runs again when the barrier has released the thread
}

}  // namespace xesim
