#include "linalg/memory.h"

#include <ATen/ATen.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <gtest/gtest.h>

#include "linalg/matrices.h"

namespace torchdion::linalg {

namespace {

at::Tensor freed() {
  const at::Tensor tensor = at::ones({3, 2});
  tensor.storage().set_nbytes(0);
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
  return tensor;
}

// As a fake tensor has it: a tensor on the CPU whose storage is on another device.
at::Tensor on_the_storage_of_another_device() {
  const at::Tensor tensor = at::ones({3, 2});
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      c10::DataPtr(tensor.data_ptr(), c10::Device(c10::kMeta)));
  return tensor;
}

TEST(HasMemory, IsTrueWhereverThePointerLeadsToAllNumbers) {
  const at::Tensor whole = at::ones({6, 4});
  for (const at::Tensor& tensor : {whole, whole.t(), whole[2], whole.expand({3, 6, 4}), at::_lazy_clone(whole),
                                   at::ones({}), at::ones({0, 4}), at::_neg_view(whole), at::ones({2}, at::kLong)}) {
    EXPECT_TRUE(has_memory(tensor)) << tensor.sizes() << tensor.strides();
  }
}

TEST(HasMemory, IsFalseWhereNoPointerLeadsToTheNumbers) {
  for (const at::Tensor& tensor :
       {at::Tensor(), freed(), at::ones({3, 2}, at::device(at::kMeta)), at::_efficientzerotensor({3, 2}),
        at::functionalization::impl::to_functional_tensor(at::ones({3, 2})), at::eye(3).to_sparse(),
        on_the_storage_of_another_device(), at::_nested_tensor_from_tensor_list({at::ones({3, 2})})}) {
    EXPECT_FALSE(has_memory(tensor));
  }
}

TEST(HasMemory, CountsTheBytesOfTheStorage) {
  const at::Tensor whole = at::ones({100}), part = whole.as_strided({6, 4}, {10, 1}, 40);  // to element 93
  EXPECT_EQ(bytes_in_use(part), 94 * sizeof(float));
  whole.storage().set_nbytes(94 * sizeof(float));
  EXPECT_TRUE(has_memory(part));
  whole.storage().set_nbytes(94 * sizeof(float) - 1);
  EXPECT_FALSE(has_memory(part));
  EXPECT_TRUE(has_memory(part.narrow(0, 0, 0)));
}

TEST(HasMemory, IsAskedBeforeAMatrixIsPointedTo) {
  EXPECT_THROW(Matrices{freed()}, c10::ValueError);
  Matrices list(at::ones({3, 2}));
  EXPECT_THROW(list.append(at::_efficientzerotensor({3, 2})), c10::ValueError);
  EXPECT_EQ(list.count(), 1);
}

}  // namespace

}  // namespace torchdion::linalg
