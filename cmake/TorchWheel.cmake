# Imports LibTorch from the installed Python wheel, without find_package(Torch): that one stops where a CUDA wheel
# meets a machine without a CUDA toolkit, and forces its own architectures where there is one.
# Gives tdtorch::cpu (libtorch_cpu, libc10, its OpenMP runtime and its BLAS) and tdtorch::python.
include_guard(GLOBAL)
if(NOT TORCH_WHEEL_DIR)
  if(NOT Python_EXECUTABLE)
    find_package(Python REQUIRED COMPONENTS Interpreter)
  endif()
  # find_spec and version.py take 0.05 s, where `import torch` takes seconds.
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import importlib.util as u, runpy, os, sys
spec = u.find_spec('torch')
if spec is None: sys.exit('torch is not installed in ' + sys.prefix)
d = spec.submodule_search_locations[0]
v = runpy.run_path(os.path.join(d, 'version.py'))
print(d, v['__version__'], v['cuda'] or 'none', sep=';')"
    OUTPUT_VARIABLE _torch OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  list(GET _torch 0 TORCH_WHEEL_DIR)
  list(GET _torch 1 TORCH_WHEEL_VERSION)
  list(GET _torch 2 TORCH_WHEEL_CUDA)
endif()

function(_tdtorch_import name file)
  add_library(tdtorch::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(tdtorch::${name} PROPERTIES
    IMPORTED_LOCATION "${TORCH_WHEEL_DIR}/lib/${file}"
    INTERFACE_INCLUDE_DIRECTORIES "${TORCH_WHEEL_DIR}/include;${TORCH_WHEEL_DIR}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "${ARGN}")
endfunction()

_tdtorch_import(c10 libc10.so "")
_tdtorch_import(torch_cpu libtorch_cpu.so tdtorch::c10)
target_compile_definitions(tdtorch::torch_cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)  # what Caffe2Targets.cmake sets
_tdtorch_import(python libtorch_python.so tdtorch::torch_cpu)

find_package(Threads REQUIRED)
add_library(tdtorch::cpu INTERFACE IMPORTED GLOBAL)
target_link_libraries(tdtorch::cpu INTERFACE tdtorch::torch_cpu tdtorch::c10 Threads::Threads)
# A program that calls find_package(Torch) too is linked with libtorch_cuda, whose own libraries the linker must find: those
# of the wheel, where the toolkit's NCCL may be too old for it.
file(GLOB _wheel_folders "${TORCH_WHEEL_DIR}/../nvidia/*/lib")
foreach(_folder IN LISTS _wheel_folders)
  target_link_options(tdtorch::cpu INTERFACE "LINKER:-rpath-link,${_folder}")
endforeach()

# at::parallel_for is a header: without -fopenmp in our own files it would run on one thread. The runtime must be the
# one the wheel carries, or a process would hold two thread pools.
target_compile_options(tdtorch::cpu INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
if(EXISTS "${TORCH_WHEEL_DIR}/lib/libgomp.so.1")
  add_library(tdtorch::openmp SHARED IMPORTED GLOBAL)
  set_target_properties(tdtorch::openmp PROPERTIES IMPORTED_LOCATION "${TORCH_WHEEL_DIR}/lib/libgomp.so.1")
  target_link_libraries(tdtorch::cpu INTERFACE tdtorch::openmp)
else()
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  target_link_libraries(tdtorch::cpu INTERFACE OpenMP::OpenMP_CXX)
endif()

# sgemm_ and dgemm_ come from the BLAS inside libtorch_cpu (MKL in the x86-64 wheels). A torch that keeps its BLAS
# in a library of its own needs that library named.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES tdtorch::torch_cpu)
set(CMAKE_REQUIRED_LINK_OPTIONS "-Wl,--unresolved-symbols=ignore-in-shared-libs")
check_cxx_source_compiles("extern \"C\" void sgemm_(); int main() { sgemm_(); }" TORCH_EXPORTS_BLAS)
unset(CMAKE_REQUIRED_LIBRARIES)
unset(CMAKE_REQUIRED_LINK_OPTIONS)
if(NOT TORCH_EXPORTS_BLAS)
  find_package(BLAS REQUIRED)
  target_link_libraries(tdtorch::cpu INTERFACE BLAS::BLAS)
endif()
