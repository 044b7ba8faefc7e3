// Products that are symmetric, in BF16: their tiles on and below the diagonal are computed, and those below it stored
// twice. Made of CUTLASS's kernels for a generation of GPUs, whose file includes this; of our own are the order of the
// tiles and what stores their mirror images.
#pragma once

#include <cuda_runtime.h>
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/gemm/kernel/tile_scheduler.hpp>

#include <stdexcept>
#include <string>

#include "linalg/cuda/lower_tiles.h"
#include "linalg/cuda/runtime.h"

namespace torchdion::linalg::cuda {

// Two blocks, one above the other, compute a tile.
inline constexpr int kBlocks = 2;
using ClusterShape = cute::Shape<cute::Int<kBlocks>, cute::_1, cute::_1>;

// ---- the order of the tiles ----

struct LowerTiles {};  // what CUTLASS is asked for

// Made of one of CUTLASS's schedulers, in which cluster c of n takes the tiles c, c + n, c + 2n, ... of a list. The
// list is that of the lower tiles of the first matrix, then of the second, and so on.
template <class Scheduler, bool adds_place_in_cluster>
class LowerTileScheduler : public cutlass::gemm::kernel::detail::StaticPersistentTileScheduler<
                               LowerTileScheduler<Scheduler, adds_place_in_cluster>> {
  using Base = cutlass::gemm::kernel::detail::StaticPersistentTileScheduler<
      LowerTileScheduler<Scheduler, adds_place_in_cluster>>;

 public:
  using typename Base::Arguments;
  using typename Base::Params;
  using typename Base::RasterOrder;
  using typename Base::RasterOrderOptions;
  using typename Base::WorkTileInfo;
  using Pipeline = typename Scheduler::Pipeline;
  using PipelineStorage = typename Scheduler::PipelineStorage;
  using ThrottlePipeline = typename Scheduler::ThrottlePipeline;
  using ThrottlePipelineStorage = typename Scheduler::ThrottlePipelineStorage;
  using SharedStorage = typename Scheduler::SharedStorage;
  using CLCResponse = typename Scheduler::CLCResponse;

  CUTLASS_DEVICE explicit LowerTileScheduler(const Params& params) : Base(params) {}
  CUTLASS_DEVICE LowerTileScheduler(CLCResponse*, const Params& params, dim3) : Base(params) {}

  // Row and column, in units of blocks, of the tile with `before` others before it in its matrix: those of its upper
  // block, or of this one.
  static CUTLASS_DEVICE cute::tuple<int32_t, int32_t> get_work_idx_m_and_n(uint64_t before,
                                                                           const cutlass::FastDivmodU64Pow2&,
                                                                           const cutlass::FastDivmodU64Pow2&,
                                                                           const cutlass::FastDivmodU64& of_pair,
                                                                           int32_t, RasterOrder) {
    uint64_t pair = 0, place = 0;
    of_pair(pair, place, before);
    const LowerTile tile =
        lower_tile(static_cast<int32_t>(pair), static_cast<int32_t>(place), static_cast<int32_t>(of_pair.divisor) - 1);
    int32_t block = tile.row * kBlocks;
    if constexpr (adds_place_in_cluster) block += static_cast<int32_t>(cute::block_id_in_cluster().x);
    return {block, tile.col};
  }

  template <class ProblemShape, class... Others>
  static Params to_underlying_arguments(ProblemShape shape, Others...) {
    const int64_t p = cute::get<0>(shape), count = cute::get<3>(shape);
    const dim3 blocks(static_cast<unsigned>(kBlocks * count_lower_tiles(p)), 1, static_cast<unsigned>(count));
    Params params;
    params.initialize(blocks, cluster(), cutlass::KernelHardwareInfo(), 1, RasterOrderOptions::AlongN);
    params.divmod_cluster_blk_major_ = cutlass::FastDivmodU64(static_cast<uint64_t>(tiles_across(p) + 1));
    return params;
  }

  template <class ProblemShape, class TileShape, class Cluster>
  static dim3 get_grid_shape(const Params& params, ProblemShape, TileShape, Cluster,
                             cutlass::KernelHardwareInfo hardware, Arguments) {
    return grid_of(params, hardware);
  }
  template <class ProblemShape, class TileShape, class Atom, class Cluster>
  static dim3 get_grid_shape(const Params& params, ProblemShape, TileShape, Atom, Cluster,
                             cutlass::KernelHardwareInfo hardware) {
    return grid_of(params, hardware);
  }

  template <class ProblemShape, class Accumulator, class... Others>
  static size_t get_workspace_size(Others&&...) {
    return 0;
  }
  template <class ProblemShape, class Accumulator, class... Others>
  static cutlass::Status initialize_workspace(Others&&...) {
    return cutlass::Status::kSuccess;
  }

  // No tile is split between blocks.
  using Base::fixup;
  template <bool is_complex, class Mma, class Accumulator, class AccumulatorPipeline, class State, class Copy>
  CUTLASS_DEVICE State fixup(const Mma&, const WorkTileInfo&, Accumulator&, AccumulatorPipeline, State state,
                             Copy) const {
    return state;
  }

 private:
  static cutlass::gemm::GemmCoord cluster() { return {kBlocks, 1, 1}; }
  static dim3 grid_of(const Params& params, const cutlass::KernelHardwareInfo& hardware) {
    const dim3 blocks(static_cast<unsigned>(params.blocks_per_problem_), 1, 1);
    return Params::get_grid_shape(blocks, cluster(), hardware, 1, RasterOrderOptions::AlongN);
  }
};

}  // namespace torchdion::linalg::cuda

namespace cutlass::gemm::kernel::detail {

template <class TileShape, class Cluster, uint32_t stages>
struct TileSchedulerSelector<torchdion::linalg::cuda::LowerTiles, arch::Sm90, TileShape, Cluster, stages> {
  using Scheduler = torchdion::linalg::cuda::LowerTileScheduler<PersistentTileSchedulerSm90, true>;
};
template <class TileShape, class Cluster, uint32_t stages>
struct TileSchedulerSelector<torchdion::linalg::cuda::LowerTiles, arch::Sm100, TileShape, Cluster, stages> {
  using Scheduler = torchdion::linalg::cuda::LowerTileScheduler<StaticPersistentTileScheduler100, false>;
};

}  // namespace cutlass::gemm::kernel::detail

namespace torchdion::linalg::cuda {

// ---- the mirror images ----

// Stores a tile a second time, as its transpose. `Store` writes where the tile would lie if the matrix were stored
// column by column, which is that place. A tile on the diagonal has its mirror image in itself, and is stored once.
template <class Store>
struct MirrorStore : Store {
  using Store::Store;

  template <class Callbacks>
  struct OffDiagonal : Callbacks {
    bool is_off_diagonal;

    CUTLASS_DEVICE OffDiagonal(Callbacks&& callbacks, bool off_diagonal)
        : Callbacks(cute::move(callbacks)), is_off_diagonal(off_diagonal) {}
    CUTLASS_DEVICE void postreduce(int m, int n, int iteration, bool issues) {
      Callbacks::postreduce(m, n, iteration, issues && is_off_diagonal);
    }
    CUTLASS_DEVICE void tma_store(int m, int n, int iteration, bool issues) {
      Callbacks::tma_store(m, n, iteration, issues && is_off_diagonal);
    }
  };

  template <bool references_source, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      const cutlass::epilogue::fusion::detail::ConsumerStoreArgs<Args...>& args) {
    auto callbacks = Store::template get_consumer_store_callbacks<references_source>(args);
    const int block = cute::get<0>(args.tile_coord_mnkl), col = cute::get<1>(args.tile_coord_mnkl);
    return OffDiagonal<decltype(callbacks)>(cute::move(callbacks), block / kBlocks != col);
  }
};

// ---- the kernel ----

using Element = cutlass::bfloat16_t;
using ByRows = cutlass::layout::RowMajor;
using ByColumns = cutlass::layout::ColumnMajor;

// D = α A B + β C, with C where `adds`; A's rows and B's columns are contiguous, or A's columns and B's rows.
// Generation: what differs from one to the next.
template <class Generation, bool adds, bool inner_is_contiguous>
struct ProductTypes {
  static_assert(cute::size<1>(typename Generation::TileShape{}) == kLowerTile);
  static_assert(cute::size<0>(typename Generation::TileShape{}) * Generation::kShapesOfTile == kLowerTile);
  using Source = cute::conditional_t<adds, Element, void>;
  using Descriptor = typename Generation::template EpilogueDescriptor<Source>;
  using Mirror = typename Generation::template StoreDescriptor<Descriptor, ByColumns>;
  static constexpr auto kRounding = cutlass::FloatRoundStyle::round_to_nearest;
  using Store =
      MirrorStore<cutlass::epilogue::fusion::Sm90AuxStore<Mirror::Stages, typename Descriptor::EpilogueTile, Element,
                                                          kRounding, typename Mirror::Stride,
                                                          typename Mirror::SmemLayoutAtom, typename Mirror::CopyOpR2S>>;
  using Factor = cutlass::epilogue::fusion::Sm90ScalarBroadcast<float>;
  using Scaled = cutlass::epilogue::fusion::Sm90EVT<
      cutlass::epilogue::fusion::Sm90Compute<cutlass::multiplies, Element, float, kRounding>, Factor,
      cutlass::epilogue::fusion::Sm90AccFetch>;
  using Added = cutlass::epilogue::fusion::Sm90LinearCombination<Element, float, Element, float, kRounding>;
  using Entries = cute::conditional_t<adds, Added, Scaled>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      typename Generation::Arch, cutlass::arch::OpClassTensorOp, typename Generation::TileShape, ClusterShape,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, Source, ByRows, 8, Element, ByRows, 8,
      typename Generation::EpilogueSchedule, cutlass::epilogue::fusion::Sm90EVT<Store, Entries>>::CollectiveOp;
  using LayoutOfA = cute::conditional_t<inner_is_contiguous, ByRows, ByColumns>;
  using LayoutOfB = cute::conditional_t<inner_is_contiguous, ByColumns, ByRows>;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      typename Generation::Arch, cutlass::arch::OpClassTensorOp, Element, LayoutOfA, 8, Element, LayoutOfB, 8, float,
      typename Generation::TileShape, ClusterShape,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      typename Generation::MainloopSchedule>::CollectiveOp;
  using Shape = cute::Shape<int, int, int, int>;  // rows, columns, inner dimension, matrices
  using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape, Mainloop, Epilogue, LowerTiles>;
};

// A type of our own, by whose name profilers know it.
template <class Generation, bool adds, bool inner_is_contiguous>
struct SymmetricProduct : ProductTypes<Generation, adds, inner_is_contiguous>::Kernel {};

template <class Generation, bool adds, bool inner_is_contiguous>
void multiply_symmetric(const Product& product, int processors, Stream stream) {
  using Types = ProductTypes<Generation, adds, inner_is_contiguous>;
  using Kernel = SymmetricProduct<Generation, adds, inner_is_contiguous>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
  const auto element = [](const Operand& operand) { return static_cast<Element*>(operand.data); };
  const auto stride = [](auto made, const Operand& operand) {  // one of its first two is 1
    if constexpr (cute::is_static_v<decltype(cute::get<0>(made))>) {
      cute::get<1>(made) = operand.leading;
    } else {
      cute::get<0>(made) = operand.leading;
    }
    cute::get<2>(made) = operand.stride;
    return made;
  };
  const auto alpha = static_cast<float>(product.alpha.value), beta = static_cast<float>(product.beta.value);
  const Operand &A = product.A, &B = product.B, &D = product.C;
  const int p = static_cast<int>(product.m), inner = static_cast<int>(product.k);
  typename Gemm::Arguments given{};
  given.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  given.problem_shape = cute::make_shape(p, p, inner, static_cast<int>(product.count));
  given.mainloop.ptr_A = element(A);
  given.mainloop.dA = stride(typename Kernel::StrideA{}, A);
  given.mainloop.ptr_B = element(B);
  given.mainloop.dB = stride(typename Kernel::StrideB{}, B);
  given.epilogue.ptr_D = element(D);
  given.epilogue.dD = stride(typename Kernel::StrideD{}, D);
  auto& [entries, mirror] = given.epilogue.thread;
  mirror = {element(D), stride(typename Types::Mirror::Stride{}, D)};
  if constexpr (adds) {
    given.epilogue.ptr_C = element(product.addend);
    given.epilogue.dC = stride(typename Kernel::StrideC{}, product.addend);
    entries = {{{beta}}, {}, {{{alpha}}, {}, {}}, {}};
  } else {
    entries = {{{alpha}}, {}, {}};
  }
  check(cudaGetDevice(&given.hw_info.device_id));
  given.hw_info.sm_count = processors;
  Gemm gemm;
  cutlass::Status status = gemm.can_implement(given);
  if (status == cutlass::Status::kSuccess) status = gemm.run(given, nullptr, static_cast<cudaStream_t>(stream));
  if (status == cutlass::Status::kSuccess) return;
  throw std::runtime_error(std::string("torchdion: CUTLASS says: ") + cutlassGetStatusString(status));
}

// Both operands are symmetric where an inner dimension is contiguous in one and not in the other, and each is read as
// its own transpose.
template <class Generation>
void multiply_symmetric_on(const Product& product, int processors, Stream stream) {
  if (product.addend.data) return multiply_symmetric<Generation, true, true>(product, processors, stream);
  if (product.A.transposed || !product.B.transposed) {
    return multiply_symmetric<Generation, false, true>(product, processors, stream);
  }
  multiply_symmetric<Generation, false, false>(product, processors, stream);
}

}  // namespace torchdion::linalg::cuda
