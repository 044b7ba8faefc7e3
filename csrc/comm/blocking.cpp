#include "comm/blocking.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "comm/by_cpu.h"
#include "comm/failure.h"
#include "comm/line.h"
#include "comm/trace.h"
#include "torch_versions.h"

namespace torchdion::comm {

namespace {

constexpr std::size_t kPart = 16 << 20;  // bytes that are copied at once

// 64 bits of all bytes: words of eight, each mixed by a product and a shift, which are invertible, so that no single
// word can differ unseen. Bytes may come in parts, which must be cut alike wherever digests are compared.
class Digest {
 public:
  explicit Digest(std::size_t size) : state_(0x9E3779B97F4A7C15 ^ size) {}

  void add(std::string_view bytes) {
    while (!bytes.empty()) {
      uint64_t word = 0;
      const std::size_t taken = bytes.size() < sizeof word ? bytes.size() : sizeof word;
      std::memcpy(&word, bytes.data(), taken);
      bytes.remove_prefix(taken);
      mix(word);
    }
  }

  int64_t result() {
    mix(0);
    return static_cast<int64_t>(state_);
  }

 private:
  void mix(uint64_t word) {
    state_ = (state_ ^ word) * 0xD6E8FEB86659FD93;
    state_ ^= state_ >> 32;
  }

  uint64_t state_;
};

void add_bytes(const at::Tensor& tensor, Digest& digest) {
  if (tensor.nbytes() <= kPart || tensor.dim() == 0) {
    const at::Tensor dense = tensor.cpu().contiguous();
    return digest.add({static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()});
  }
  const int64_t in_row = static_cast<int64_t>(tensor.nbytes()) / tensor.size(0);
  const int64_t rows = std::max<int64_t>(1, static_cast<int64_t>(kPart) / in_row);
  for (const at::Tensor& part : tensor.split(rows)) add_bytes(part.size(0) == 1 ? part[0] : part, digest);
}

void all_reduce_and_wait(const at::Tensor& tensor, c10d::ReduceOp::RedOpType operation, const Axis& axis) {
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  std::vector<at::Tensor> tensors{tensor};
  named("all_reduce", axis, [&] { return axis.line->group->allreduce(tensors, options)->wait(); });
}

}  // namespace

void average(const at::Tensor& tensor, const Axis& axis) {
  if (axis.absent() || tensor.numel() == 0) return;
  const at::Tensor copy = tensor.to(tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat,
                                    /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  const at::Tensor mean = where_it_can_be_sent(copy, axis);
  all_reduce_and_wait(mean, c10d::ReduceOp::SUM, axis);
  tensor.copy_(mean.div_(axis.size));
}

void copy_from_first(const at::Tensor& tensor, const Axis& axis) {
  if (axis.absent() || tensor.numel() == 0) return;
  // As bytes: backends send, and torch copies, few of the dtypes that frozen parameters have.
  const bool is_plain = tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  const at::Tensor whole = is_plain ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
  const at::Tensor bytes = whole.view({-1}).view(at::kByte);
  std::vector<at::Tensor> sent{where_it_can_be_sent(bytes.clone(), axis)};
  named("broadcast", axis, [&] { return axis.line->group->broadcast(sent, c10d::BroadcastOptions())->wait(); });
  bytes.copy_(sent[0]);
  if (!is_plain) tensor.copy_(whole);
}

int64_t digest(std::string_view bytes) {
  Digest all(bytes.size());
  all.add(bytes);
  return all.result();
}

int64_t digest_of(const at::Tensor& tensor) {
  Digest all(tensor.nbytes());
  add_bytes(tensor, all);
  return all.result();
}

std::vector<bool> differing(const std::vector<at::Tensor>& tensors, const Axis& axis) {
  const auto count = static_cast<int64_t>(tensors.size());
  const at::Tensor digests = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) digests.mutable_data_ptr<int64_t>()[i] = digest_of(tensors[i]);
  return differing_entries(digests, axis);
}

std::vector<bool> differing_entries(const at::Tensor& integers, const Axis& axis) {
  const int64_t count = integers.size(0);
  std::vector<bool> answer(count, false);
  if (axis.absent() || count == 0) return answer;
  const at::Tensor both = at::stack({integers, integers.bitwise_not()});  // the largest complement: of the smallest
  max_(both, axis);
  const auto* values = both.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) answer[i] = values[i] != ~values[count + i];
  return answer;
}

void max_(const at::Tensor& tensor, const Axis& axis) {
  if (axis.absent() || tensor.numel() == 0) return;
  if (active_trace) active_trace->events.push_back({"issue", -1, axis.name(), "agreement", tensor.numel()});
  const int64_t bytes = 2 * (static_cast<int64_t>(tensor.nbytes()) * (axis.size - 1) / axis.size);
  add(axis.line->traffic.agreement, {1, 0, bytes});
  const at::Tensor sent = where_it_can_be_sent(tensor, axis);
  all_reduce_and_wait(sent, c10d::ReduceOp::MAX, axis);
  if (!sent.is_same(tensor)) tensor.copy_(sent);
}

at::Tensor piece_of(const at::Tensor& whole, int64_t dim, const Axis& axis) {
  const Piece piece = axis.piece(whole.size(dim));
  return whole.narrow(dim, piece.begin, piece.size);
}

at::Tensor gather_pieces(const at::Tensor& piece, int64_t dim, int64_t length, const Axis& axis) {
  if (axis.absent()) return piece;
  const at::Tensor own = piece.movedim(dim, 0);
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes.front() = axis.largest_piece(length);
  const at::Tensor padded = at::zeros(sizes, own.options());  // no backend gathers unequal pieces
  padded.narrow(0, 0, own.size(0)).copy_(own);
  sizes.front() = length;
  const at::Tensor whole = at::empty(sizes, own.options());
  if (whole.numel() > 0) {
    sizes.front() = axis.size * padded.size(0);
    at::Tensor sent = where_it_can_be_sent(padded, axis), pieces = at::empty(sizes, sent.options());
    named("all_gather", axis, [&] { return torch_versions::all_gather(*axis.line->group, pieces, sent)->wait(); });
    for (int rank = 0; rank < axis.size; ++rank) {
      const Piece theirs = axis.piece(length, rank);
      whole.narrow(0, theirs.begin, theirs.size).copy_(pieces.narrow(0, rank * padded.size(0), theirs.size));
    }
  }
  return whole.movedim(0, dim).contiguous();
}

}  // namespace torchdion::comm
