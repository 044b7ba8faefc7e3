// Operands of a product in BF16, packed as the processor's dot products read them.
//
// A processor with AVX512-BF16 or AMX multiplies pairs of entries that are next to each other in the inner dimension.
// An operand is cut into panels of kPanelWidth rows of A or columns of B, and each panel into chunks of kPanelDepth
// inner entries, padded with zeros to kWidthStep rows or columns and kDepthStep inner entries: products of all shapes
// share a few sizes of tiles, for each of which a kernel is made at run time.
#pragma once

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>

#include "linalg/matrices.h"

namespace torchdion::linalg::cpu {

inline constexpr int64_t kPanelWidth = 64, kPanelDepth = 768;
inline constexpr int64_t kWidthStep = 16, kDepthStep = 32;

inline int64_t padded_width(int64_t width) { return (width + kWidthStep - 1) / kWidthStep * kWidthStep; }
inline int64_t padded_depth(int64_t depth) { return (depth + kDepthStep - 1) / kDepthStep * kDepthStep; }

// One matrix as a product reads it: `outer` rows of A or columns of B, each of `inner` entries, FP32 or BF16. One of
// the strides is 1.
struct Operand {
  const void* data;
  int64_t outer, inner, outer_stride, inner_stride;
  bool is_bfloat16;
};

// Matrix `index` of A, whose rows are the outer entries; of B it is that of B.t().
Operand operand_of(const Matrices& A, int64_t index);

// How a chunk of a panel lies in memory.
enum class PanelOrder {
  rows,  // of A: [outer][inner]
  pairs  // of B: [inner / 2][outer][2]
};

// Packs the panel of outer entries from `first` on, at most kPanelWidth of them. FP32 entries are rounded to the
// nearest BF16: NaN and infinity stay what they are, and finite numbers beyond the range of BF16 become its largest.
// `panel` has room for padded_width · padded_depth entries. For processors with has_bfloat16_products().
void pack_panel(const Operand& operand, int64_t first, PanelOrder order, c10::BFloat16* panel);

}  // namespace torchdion::linalg::cpu
