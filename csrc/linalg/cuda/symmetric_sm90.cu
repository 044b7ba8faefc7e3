// Symmetric products on H100 and H200.
#include "linalg/cuda/symmetric_product.h"

namespace torchdion::linalg::cuda {

struct Hopper {
  using Arch = cutlass::arch::Sm90;
  using TileShape = cute::Shape<cute::_128, cute::_256, cute::_64>;  // of a block
  static constexpr int kShapesOfTile = kBlocks;                      // one above the other
  using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecializedCooperative;
  using MainloopSchedule = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
  template <class Source>
  using EpilogueDescriptor = cutlass::epilogue::collective::detail::EpilogueDescriptor<
      TileShape, cutlass::epilogue::collective::EpilogueTileAuto, Source, Element, EpilogueSchedule>;
  template <class Descriptor, class Layout>
  using StoreDescriptor = cutlass::epilogue::collective::detail::AuxStoreDescriptor<Descriptor, Layout, Element>;
};

namespace kernels {

void multiply_symmetric_sm90(const Product& product, int processors, Stream stream) {
  multiply_symmetric_on<Hopper>(product, processors, stream);
}

}  // namespace kernels

}  // namespace torchdion::linalg::cuda
