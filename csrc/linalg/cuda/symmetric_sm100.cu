// Symmetric products on B200.
#include "linalg/cuda/symmetric_product.h"

namespace torchdion::linalg::cuda {

struct Blackwell {
  using Arch = cutlass::arch::Sm100;
  using TileShape = cute::Shape<cute::_256, cute::_256, cute::_64>;  // of both blocks
  static constexpr int kShapesOfTile = 1;
  using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecialized2Sm;
  using MainloopSchedule = cutlass::gemm::KernelTmaWarpSpecialized2SmSm100;
  using Stride = cutlass::detail::TagToStrideC_t<ByRows>;
  template <class Source>
  using EpilogueDescriptor = cutlass::epilogue::collective::detail::Sm100EpilogueDescriptor<
      cutlass::arch::OpClassTensorOp, TileShape, cutlass::epilogue::collective::EpilogueTileAuto, float, Source,
      Element, EpilogueSchedule, Stride, Stride, false, false>;
  template <class Descriptor, class Layout>
  using StoreDescriptor = cutlass::epilogue::collective::detail::Sm100AuxStoreDescriptor<Descriptor, Layout, Element>;
};

namespace kernels {

void multiply_symmetric_sm100(const Product& product, int processors, Stream stream) {
  multiply_symmetric_on<Blackwell>(product, processors, stream);
}

}  // namespace kernels

}  // namespace torchdion::linalg::cuda
