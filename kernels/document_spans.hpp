// The least and the greatest document id of each span of positions, which attention/documents.hpp
// reads. One work-item per span of a sequence.
#pragma once

#include "attention/documents.hpp"

namespace xeflash {

template <class Config>
XF_INLINE void document_spans(const FwdParams& p) {
  const Group::Index group = Group::index(), spans = (p.max_k - 1) / kSpan + 1;
  const Sequence seq(p, static_cast<int>(group / spans));
  const DocumentIds ids(p.documents, seq);
  const int span = static_cast<int>(group % spans), first = span * kSpan;
  Ints least = ids.at(lane_index() + first), greatest = least;
  for (int position = first + kLanes; position < first + kSpan; position += kLanes) {
    const Ints here = ids.at(lane_index() + position);
    least = select(here < least, here, least);
    greatest = select(here > greatest, here, greatest);
  }
  const int64_t at = seq.batch * p.documents.batch_spans + span;
  p.documents.least[at] = lowest_of(least);
  p.documents.greatest[at] = ~lowest_of(~greatest);
}

}  // namespace xeflash
