#include <algorithm>
#include <functional>
#include <numeric>

#include "comm/line.h"
#include "one_sentence.h"

namespace torchdion {

namespace {

void check_options(const AxisOptions& options, int size) {
  const int chunks = std::accumulate(options.chunks.begin(), options.chunks.end(), 1, std::multiplies<>());
  TORCH_CHECK_VALUE(chunks == size, "torchdion::Axis: chunks must be as many as the group has ranks, ", size, ", got ",
                    chunks);
  std::vector<int> each(size);
  std::iota(each.begin(), each.end(), 0);
  TORCH_CHECK_VALUE(std::ranges::is_permutation(options.pieces, each),
                    "torchdion::Axis: pieces must hold every number below ", size, " once, got ", options.pieces);
}

const c10::intrusive_ptr<c10d::ProcessGroup>& there(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  TORCH_CHECK_VALUE(group, "torchdion::Axis: the group must be one, got null; a line of one rank is Axis()");
  return group;
}

Piece chunk(Piece whole, int index, int count) {
  const int64_t size = (whole.size + count - 1) / count;
  const int64_t begin = std::min(index * size, whole.size);
  return {whole.begin + begin, std::min(size, whole.size - begin)};
}

}  // namespace

Axis::Axis(c10::intrusive_ptr<c10d::ProcessGroup> group, const AxisOptions& options) try
    : rank(there(group)->getRank()), size(group->getSize()) {
  AxisOptions all = options;
  if (all.chunks.empty()) all.chunks = {size};
  if (all.pieces.empty()) {
    all.pieces.resize(size);
    std::iota(all.pieces.begin(), all.pieces.end(), 0);
  }
  check_options(all, size);
  if (size == 1 && !options.real_when_alone) return;
  if (all.name.empty()) all.name = group->getGroupName();
  line = std::make_shared<comm::Line>(comm::Line{std::move(group), std::move(all), {}});
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

Piece Axis::piece(int64_t length, int of_rank) const {
  Piece piece{0, length};
  if (absent()) return piece;
  int index = line->options.pieces[of_rank], finer = size;
  for (const int count : line->options.chunks) {
    finer /= count;
    piece = chunk(piece, index / finer, count);
    index %= finer;
  }
  return piece;
}

int64_t Axis::largest_piece(int64_t length) const {
  int64_t largest = length;
  for (const int count : absent() ? std::vector<int>{} : line->options.chunks) largest = (largest + count - 1) / count;
  return largest;
}

const std::string& Axis::name() const {
  static const std::string none;
  return absent() ? none : line->options.name;
}

void Axis::set_in_flight_group(c10::intrusive_ptr<c10d::ProcessGroup> group) const try {
  if (absent()) return;
  TORCH_CHECK_VALUE(there(group)->getRank() == rank && group->getSize() == size && group != line->group,
                    "torchdion::Axis: the group in flight must be another one of the same ranks, rank ", rank, " of ",
                    size, " on the axis '", name(), "', got ",
                    group == line->group ? "the same" : c10::str("rank ", group->getRank(), " of ", group->getSize()));
  line->in_flight = std::make_shared<comm::Line>(comm::Line{std::move(group), line->options, {}});
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

AxisTraffic Axis::traffic() const { return absent() ? AxisTraffic{} : line->traffic; }

Layout Layout::t() const {
  Layout transposed = *this;
  std::swap(transposed.rows, transposed.cols);
  return transposed;
}

}  // namespace torchdion
