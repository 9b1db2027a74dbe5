// Who watches a launch, and what it is told: counts, lines, profile and races are observers, each a
// file in observe/. Execution knows none of them.
//
// One object watches a whole launch. Its functions are called from several host threads, each with
// the threads of its own worker: state that is not shared is kept per Worker::index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace xesim {

struct Allocation;
struct Group;
struct LaunchRecord;
struct Thread;

enum class Space : uint8_t { kGlobal, kSlm, kScratch, kPayload };  // kPayload: the indirect data
enum class Traffic : uint8_t { kGather, kBlock, kBlock2d, kAtomic };
enum class Access : uint8_t { kRead, kWrite, kAtomic, kPrefetch };

// Consecutive bytes that a message touches: of a lane, of a row of a 2D block, of a whole block.
struct Piece {
  uint64_t address;              // in global memory as the program sees it, else in its space
  uint8_t* memory;               // where the simulator finds it; null for prefetches
  const Allocation* allocation;  // of global memory; null for prefetches
  uint32_t bytes;
  bool changes;  // false: a write to SLM of what is there already
};

struct MessageEvent {
  Space space;
  Traffic traffic;
  Access access;
  bool returns;         // something to registers
  bool narrow_surface;  // a 2D block on a surface narrower than the documented 64 bytes
  std::span<const Piece> pieces;
};

// kSignal, kSignalConsumer: a thread arrives, the latter without others waiting for it. kComplete:
// all have arrived. kPass: a thread goes on behind it.
enum class BarrierStep : uint8_t { kSignal, kSignalConsumer, kComplete, kPass };

// Observers change nothing; a Fault that they throw stops the launch.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_group(const Group&) {}                                        // before it runs
  virtual void on_instruction(const Thread&, [[maybe_unused]] size_t index) {}  // after it has run
  // Before a message changes memory, after it has read it.
  virtual void on_message(const Thread&, const MessageEvent&) {}
  virtual void on_barrier(const Thread&, [[maybe_unused]] int id, BarrierStep) {}
  virtual void on_end(const Thread&) {}
  virtual void report(LaunchRecord&) {}  // after the launch
};

// The observers of a launch, by what they want to be told: an event that nobody watches costs the
// test of an empty list.
class Observers {
 public:
  template <class T, class... Args>
  void add(Args&&... args) {
    auto observer = std::make_unique<T>(std::forward<Args>(args)...);
    watch(group_, &T::on_group, &Observer::on_group, *observer);
    watch(instruction_, &T::on_instruction, &Observer::on_instruction, *observer);
    watch(message_, &T::on_message, &Observer::on_message, *observer);
    watch(barrier_, &T::on_barrier, &Observer::on_barrier, *observer);
    watch(end_, &T::on_end, &Observer::on_end, *observer);
    all_.push_back(std::move(observer));
  }

  void on_group(const Group& group) const {
    for (Observer* o : group_) o->on_group(group);
  }
  void on_instruction(const Thread& thread, size_t index) const {
    for (Observer* o : instruction_) o->on_instruction(thread, index);
  }
  void on_message(const Thread& thread, const MessageEvent& event) const {
    for (Observer* o : message_) o->on_message(thread, event);
  }
  void on_barrier(const Thread& thread, int id, BarrierStep step) const {
    for (Observer* o : barrier_) o->on_barrier(thread, id, step);
  }
  void on_end(const Thread& thread) const {
    for (Observer* o : end_) o->on_end(thread);
  }
  void report(LaunchRecord& record) const {
    for (const auto& o : all_) o->report(record);
  }

 private:
  // A function that T does not override has the type of the base's.
  template <class Own, class Base>
  static void watch(std::vector<Observer*>& list, Own, Base, Observer& observer) {
    if constexpr (!std::is_same_v<Own, Base>) list.push_back(&observer);
  }

  std::vector<std::unique_ptr<Observer>> all_;
  std::vector<Observer*> group_, instruction_, message_, barrier_, end_;
};

}  // namespace xesim
