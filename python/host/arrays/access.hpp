// How a GPU kernel reads and writes rows: see Access in kernels/xe/vec.hpp.
#pragma once

#include <initializer_list>
#include <string>

#include "host/arrays/array.hpp"

namespace xeflash {

enum class Access : uint8_t { kNone, kBlock2d, kDwords, kElements };  // kNone: not a GPU
const char* name_of(Access access);

// The dimensions of an array; -1: it has none.
struct Axes {
  int batch, row, head;
};
struct Strides {  // bytes
  int64_t batch, row, head;
};
Strides strides_of(const Array& array, const Axes& axes);

// The widest access to single rows that strides and address of an array allow on an architecture:
// never 2D blocks.
Access access_of_rows(const Array& array, const Axes& axes, const std::string& arch);

// Whether 2D block messages reach rows of so many columns.
bool fits_block2d(const Array& array, const Axes& axes, int64_t columns);
// Whether so many bytes in a row are a matrix for them.
bool is_row_of_block2d(int64_t bytes);

// The widest access to matrices, whose rows lie in one piece each.
Access access_of_matrices(std::initializer_list<const Array*> matrices, const std::string& arch);

// Kernels on GPUs count their groups in 32 bits.
void check_groups(uint64_t groups, Access access);

}  // namespace xeflash
