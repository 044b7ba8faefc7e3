# CUTLASS's headers, of which the kernels for symmetric products are made: those of the Python package nvidia-cutlass, or
# in the folder TORCHDION_CUTLASS. Without them cuBLAS computes these products whole. Gives TORCHDION_CUTLASS_VERSION, or
# "none", torchdion_symmetric_products(), which compiles the kernels, and torchdion_add_symmetric_products(), which adds
# them to a target.
set(TORCHDION_CUTLASS AUTO CACHE STRING "CUTLASS: AUTO (where nvidia-cutlass is installed), OFF, or its include folder")
set(TORCHDION_CUTLASS_VERSION none)
set(TORCHDION_SYMMETRIC_PRODUCTS "")

# Generations of GPUs that have such a kernel, of those that are compiled for. It is for a GPU's own instructions, which
# no other GPU knows.
set(_generations)
if(NOT TORCHDION_TOOLKIT STREQUAL "none" AND TORCHDION_CUTLASS)
  foreach(_sm 90 100)
    if(CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)${_sm}a?(-|;|$)"
        AND NOT (_sm EQUAL 100 AND CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8))
      list(APPEND _generations ${_sm})
    endif()
  endforeach()
endif()

if(_generations AND TORCHDION_CUTLASS STREQUAL "AUTO")
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import importlib.util as u
spec = u.find_spec('cutlass_library')
print(spec.submodule_search_locations[0] + '/source/include' if spec else '')"
    OUTPUT_VARIABLE _cutlass OUTPUT_STRIP_TRAILING_WHITESPACE)
elseif(_generations)
  set(_cutlass "${TORCHDION_CUTLASS}")
  if(NOT EXISTS "${_cutlass}/cutlass/version.h")
    message(FATAL_ERROR "TORCHDION_CUTLASS=${_cutlass} holds no cutlass/version.h: give CUTLASS's include folder, "
      "AUTO or OFF")
  endif()
endif()
if(EXISTS "${_cutlass}/cutlass/version.h")
  file(READ "${_cutlass}/cutlass/version.h" _header)
  set(_parts)
  foreach(_part MAJOR MINOR PATCH)
    string(REGEX MATCH "CUTLASS_${_part} ([0-9]+)" _ "${_header}")
    list(APPEND _parts "${CMAKE_MATCH_1}")
  endforeach()
  list(JOIN _parts "." _version)
  if(_version VERSION_LESS 4.2)
    message(WARNING "CUTLASS ${_version} at ${_cutlass} is left out: symmetric products take 4.2 or newer")
  elseif(TORCHDION_CUTLASS STREQUAL "AUTO" AND _version VERSION_GREATER_EQUAL 4.3)
    message(STATUS "CUTLASS ${_version} at ${_cutlass} is newer than 4.2, the version that was tried: TORCHDION_CUTLASS "
      "with that folder takes it")
  else()
    set(TORCHDION_CUTLASS_VERSION "${_version}")
    list(TRANSFORM _generations PREPEND sm OUTPUT_VARIABLE TORCHDION_SYMMETRIC_PRODUCTS)
    # Its license asks that a binary made of it brings this notice.
    string(FIND "${_header}" "*/" _end)
    string(SUBSTRING "${_header}" 0 ${_end} _notice)
    file(WRITE ${PROJECT_BINARY_DIR}/licenses/CUTLASS.txt "${_notice}*/\n")
    install(FILES ${PROJECT_BINARY_DIR}/licenses/CUTLASS.txt DESTINATION share/licenses)
  endif()
endif()

# Compiles the kernels.
function(torchdion_symmetric_products)
  foreach(_sm IN LISTS TORCHDION_SYMMETRIC_PRODUCTS)
    set(_kernel torchdion_symmetric_${_sm})
    add_library(${_kernel} OBJECT csrc/linalg/cuda/symmetric_${_sm}.cu)
    string(REPLACE "sm" "" _architecture ${_sm})
    set_target_properties(${_kernel} PROPERTIES CUDA_ARCHITECTURES ${_architecture}a-real CUDA_VISIBILITY_PRESET hidden)
    target_include_directories(${_kernel} PRIVATE include csrc)
    target_include_directories(${_kernel} SYSTEM PRIVATE "${_cutlass}")
    # Its assertions are calls, around which the tensor cores' instructions would not overlap.
    target_compile_options(${_kernel} PRIVATE --expt-relaxed-constexpr -DNDEBUG)
    target_link_libraries(${_kernel} PRIVATE tdtorch::cuda)
  endforeach()
endfunction()

# `source` asks by TORCHDION_SYMMETRIC_SM90 and the like which kernels there are.
function(torchdion_add_symmetric_products target source)
  foreach(_sm IN LISTS TORCHDION_SYMMETRIC_PRODUCTS)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:torchdion_symmetric_${_sm}>)
    string(TOUPPER ${_sm} _name)
    set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS TORCHDION_SYMMETRIC_${_name})
  endforeach()
endfunction()
