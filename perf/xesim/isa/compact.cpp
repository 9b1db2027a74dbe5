// Compacted instructions: 8 bytes that hold opcode, scoreboard, register numbers and indices into
// fixed tables.
#include <cstdint>
#include <span>

#include "isa/decode_parts.hpp"
#include "isa/fields.hpp"

namespace xesim {
namespace {

#include "isa/compaction_tables.inc"

// An index: its bits in the compacted word (the highest piece first), and the fields of the full
// instruction that a value of its table holds, the first one lowest.
struct Index {
  std::span<const Field> from, to;
};
struct Move {
  Field from, to;
};
struct Form {
  std::span<const Move> moves;
  std::span<const Index> indices;
};
enum FormKind { kBasicForm, kTernaryForm, kDpasForm };

namespace common {
constexpr Field kTypes[] = {{35, 35}, {39, 36}, {43, 40}, {46, 46}, {47, 47},
                            {49, 48}, {50, 50}, {66, 66}, {91, 88}, {98, 98}};
constexpr Field kTernarySource[] = {{35, 35}, {43, 43}, {44, 44},   {45, 45},  {66, 66}, {85, 84},
                                    {87, 86}, {98, 98}, {114, 114}, {46, 46},  {47, 47}, {65, 64},
                                    {83, 83}, {91, 91}, {97, 96},   {113, 112}};
constexpr Field kDpasSource[] = {{43, 43}, {44, 44},   {45, 45}, {66, 66},  {85, 84}, {87, 86},
                                 {98, 98}, {114, 114}, {35, 35}, {46, 46},  {47, 47}, {65, 64},
                                 {83, 83}, {91, 91},   {97, 96}, {113, 112}};
constexpr Field kTernarySub[] = {{55, 51}, {71, 67}, {103, 99}, {119, 115}};
}  // namespace common

namespace dg2 {
constexpr Field kControl[] = {{18, 16}, {21, 19}, {23, 22}, {27, 24}, {28, 28},
                              {31, 31}, {32, 32}, {33, 33}, {34, 34}, {95, 92}};
constexpr Field kTernaryControl[] = {{18, 16}, {21, 19}, {23, 22}, {27, 24}, {28, 28}, {31, 31},
                                     {32, 32}, {33, 33}, {34, 34}, {48, 48}, {49, 49}, {50, 50},
                                     {38, 36}, {39, 39}, {42, 40}, {82, 80}, {90, 88}, {95, 92}};
constexpr Field kSub[] = {{55, 51}, {71, 67}, {103, 99}};
constexpr Field kSrc0[] = {{45, 44}, {65, 64}, {80, 80}, {83, 81}, {87, 84}};
constexpr Field kSrc1[] = {{97, 96}, {112, 112}, {115, 113}, {121, 120}, {119, 116}};
constexpr Field kAtControl[] = {{28, 24}}, kAtType[] = {{34, 30}}, kAtSub[] = {{39, 35}};
constexpr Field kAtSrc0[] = {{51, 48}}, kAtSrc1[] = {{55, 52}};

constexpr Index kBasicIndices[] = {{kAtControl, kControl},
                                   {kAtType, common::kTypes},
                                   {kAtSub, kSub},
                                   {kAtSrc0, kSrc0},
                                   {kAtSrc1, kSrc1}};
constexpr Index kTernaryIndices[] = {{kAtControl, kTernaryControl},
                                     {kAtType, common::kTernarySource},
                                     {kAtSub, common::kTernarySub}};
constexpr Index kDpasIndices[] = {
    {kAtControl, kTernaryControl}, {kAtType, common::kDpasSource}, {kAtSub, common::kTernarySub}};
constexpr Move kBasicMoves[] = {{{6, 0}, kOpcode},    {{7, 7}, {30, 30}},   {{15, 8}, {15, 8}},
                                {{23, 16}, {63, 56}}, {{47, 40}, {79, 72}}, {{63, 56}, {111, 104}}};
constexpr Move kTernaryMoves[] = {
    {{6, 0}, kOpcode},    {{7, 7}, {30, 30}},     {{15, 8}, {15, 8}},    {{23, 16}, {63, 56}},
    {{47, 40}, {79, 72}}, {{63, 56}, {111, 104}}, {{55, 48}, {127, 120}}};
constexpr Form kForms[] = {
    {kBasicMoves, kBasicIndices}, {kTernaryMoves, kTernaryIndices}, {kTernaryMoves, kDpasIndices}};
}  // namespace dg2

// pvc and bmg: one layout, two sets of tables.
namespace xe2 {
constexpr Field kControl[] = {{20, 18}, {23, 21}, {25, 24}, {27, 26}, {28, 28},
                              {31, 31}, {32, 32}, {34, 34}, {95, 92}};
constexpr Field kTernaryControl[] = {{20, 18}, {23, 21}, {25, 24}, {27, 26}, {28, 28}, {31, 31},
                                     {32, 32}, {34, 34}, {48, 48}, {49, 49}, {50, 50}, {38, 36},
                                     {39, 39}, {42, 40}, {82, 80}, {90, 88}, {95, 92}};
constexpr Field kSub[] = {{33, 33}, {55, 51}, {71, 67}, {87, 87}};
constexpr Field kSrc0[] = {{45, 44}, {65, 64}, {80, 80}, {83, 81}, {86, 84}};
constexpr Field kSrc1[] = {{97, 96},  {112, 112}, {115, 113}, {121, 120},
                           {103, 99}, {118, 116}, {119, 119}};
constexpr Field kAtControl[] = {{22, 18}}, kAtType[] = {{31, 30}, {28, 26}}, kAtSub[] = {{51, 48}};
constexpr Field kAtSrc0[] = {{25, 23}}, kAtSrc1[] = {{55, 52}};
constexpr Field kAtTernaryControl[] = {{21, 18}}, kAtSource[] = {{25, 22}};

constexpr Move kBasicMoves[] = {{{6, 0}, kOpcode},    {{7, 7}, {30, 30}},   {{17, 8}, {17, 8}},
                                {{39, 32}, {63, 56}}, {{47, 40}, {79, 72}}, {{63, 56}, {111, 104}}};
constexpr Move kTernaryMoves[] = {
    {{6, 0}, kOpcode},    {{7, 7}, {30, 30}},     {{17, 8}, {17, 8}},    {{39, 32}, {63, 56}},
    {{47, 40}, {79, 72}}, {{63, 56}, {111, 104}}, {{55, 48}, {127, 120}}};

constexpr Index kBasicIndices[] = {{kAtControl, kControl},
                                   {kAtType, common::kTypes},
                                   {kAtSub, kSub},
                                   {kAtSrc0, kSrc0},
                                   {kAtSrc1, kSrc1}};
constexpr Index kTernaryIndices[] = {{kAtTernaryControl, kTernaryControl},
                                     {kAtSource, common::kTernarySource},
                                     {kAtType, common::kTernarySub}};
constexpr Index kDpasIndices[] = {{kAtTernaryControl, kTernaryControl},
                                  {kAtSource, common::kDpasSource},
                                  {kAtType, common::kTernarySub}};
constexpr Form kForms[] = {
    {kBasicMoves, kBasicIndices}, {kTernaryMoves, kTernaryIndices}, {kTernaryMoves, kDpasIndices}};
}  // namespace xe2

// The measured values: family, form, index in the order of the form's `indices`.
constexpr const uint64_t* kValues[3][3][5] = {
    {{kDg2BasicControl, kDg2BasicType, kDg2BasicSub, kDg2BasicSrc0, kDg2BasicSrc1},
     {kDg2TernaryControl, kDg2TernarySource, kDg2TernarySub},
     {kDg2DpasControl, kDg2DpasSource, kDg2DpasSub}},
    {{kPvcBasicControl, kPvcBasicType, kPvcBasicSub, kPvcBasicSrc0, kPvcBasicSrc1},
     {kPvcTernaryControl, kPvcTernarySource, kPvcTernarySub},
     {kPvcDpasControl, kPvcDpasSource, kPvcDpasSub}},
    {{kBmgBasicControl, kBmgBasicType, kBmgBasicSub, kBmgBasicSrc0, kBmgBasicSrc1},
     {kBmgTernaryControl, kBmgTernarySource, kBmgTernarySub},
     {kBmgDpasControl, kBmgDpasSource, kBmgDpasSub}},
};

// Sends, branches, math and nop have no compacted form, nor has madm on dg2.
bool form_of(Family family, uint32_t opcode, FormKind& kind) {
  const OpcodeRow* row = row_at(opcode);
  if (row == nullptr || (row->op == Op::kMadm && family == Family::kDg2)) return false;
  switch (row->format) {
    case Format::kUnary:
    case Format::kBinary:
    case Format::kSync:
      kind = kBasicForm;
      return true;
    case Format::kTernary:
      kind = kTernaryForm;
      return true;
    case Format::kDpas:
      kind = kDpasForm;
      return true;
    default:
      return false;
  }
}

// The twelve bits of an immediate as the full instruction holds them: the high bits of a float,
// else a sign-extended number if the type is signed; words are written twice.
bool expand_immediate(uint32_t value, uint32_t type, uint32_t& full) {
  const uint32_t extended = static_cast<uint32_t>(sign_extend(value, 12));
  switch (type) {
    case 10:
      full = value << 20;
      return true;  // f
    case 6:
      full = extended;
      return true;  // d
    case 5:
      full = (extended & 0xFFFF) | extended << 16;
      return true;  // w
    case 1:
      full = value | value << 16;
      return true;  // uw
    case 0:
    case 2:
    case 4:
      full = value;
      return true;  // uv, ud, v
    default:
      return false;
  }
}

}  // namespace

bool expand(const Isa& isa, uint64_t compacted, Bits128& bits) {
  const Bits128 word = {compacted, 0};
  FormKind kind;
  if (!form_of(isa.family, get(word, kOpcode), kind)) return false;
  const Form& form = isa.family == Family::kDg2 ? dg2::kForms[kind] : xe2::kForms[kind];
  const Family measured = std::min(isa.family, Family::kBmg);  // Xe3's are those of Xe2
  const uint64_t* const* values = kValues[static_cast<int>(measured)][kind];
  Bits128 full = {};
  for (const Move& move : form.moves) set(full, move.to, get(word, move.from));
  for (const Index& index : form.indices) {
    uint32_t i = 0;
    for (Field piece : index.from) i = i << piece.width() | get(word, piece);
    uint64_t value = (*values++)[i];
    for (Field field : index.to) {
      set(full, field, static_cast<uint32_t>(value));
      value >>= field.width();
    }
  }
  for (int i = 0; kind == kBasicForm && i < 2; ++i) {
    uint32_t immediate = 0;
    if (!get(full, kSourceImmediate[i])) continue;
    if (!expand_immediate(get(word, Field{63, 52}), get(full, kSourceType[i]), immediate))
      return false;
    set(full, kImmediate, immediate);
  }
  bits = full;
  return true;
}

}  // namespace xesim
