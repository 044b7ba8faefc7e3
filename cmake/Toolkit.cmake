# Whether a CUDA toolkit is at hand. This version has no kernels to compile with it; the answer is recorded, and
# TORCHDION_CUDA=ON without a toolkit is an error, so that a build never silently lacks what was asked for.
set(TORCHDION_TOOLKIT none)
if(NOT TORCHDION_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --version OUTPUT_VARIABLE _nvcc)
    string(REGEX MATCH "V([0-9.]+)" _ "${_nvcc}")
    set(TORCHDION_TOOLKIT "${CMAKE_MATCH_1}")
  elseif(TORCHDION_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TORCHDION_CUDA=ON, but no nvcc was found: set CUDACXX or CUDA_HOME, or use AUTO or OFF")
  endif()
endif()
