// Chooses how a GPU kernel reads and writes rows: see Access in kernels/xe/vec.hpp.
#pragma once

#include <initializer_list>
#include <string>

#include "host/arrays/array.hpp"

namespace xeflash {

enum class Access : uint8_t { kNone, kBlock2d, kDwords, kElements };  // kNone: not a GPU
const char* name_of(Access access);

// The dimensions of an array; -1 says that it has none of this kind.
struct Axes {
  int batch, row, head;
};
struct Strides {  // bytes
  int64_t batch, row, head;
};
Strides strides_of(const Array& array, const Axes& axes);

// Returns the widest access to single rows that the strides and the address of an array allow on an
// architecture. It is never 2D blocks.
Access access_of_rows(const Array& array, const Axes& axes, const std::string& arch);

// Returns whether 2D block messages can read rows of this many columns.
bool fits_block2d(const Array& array, const Axes& axes, int64_t columns);
// Returns whether this many bytes in a row can be a matrix for 2D block messages.
bool is_row_of_block2d(int64_t bytes);

// Returns the widest access to matrices whose rows are contiguous.
Access access_of_matrices(std::initializer_list<const Array*> matrices, const std::string& arch);

// Kernels on GPUs count their groups in 32 bits.
void check_groups(uint64_t groups, Access access);

}  // namespace xeflash
