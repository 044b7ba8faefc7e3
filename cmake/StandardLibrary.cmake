# The C++ standard library as torch has it: shared. Where a compiler's libstdc++.so is a link to nothing, the linker takes
# libstdc++.a without a word, and with two copies of it in one process the first stream crashes.
function(_torchdion_needs_of_programs needed)
  set(_program "${CMAKE_CURRENT_BINARY_DIR}/standard_library")
  try_compile(_linked SOURCE_FROM_CONTENT program.cpp "#include <iostream>\nint main() { std::cout << 1; }\n"
    COPY_FILE "${_program}" NO_CACHE)
  execute_process(COMMAND "${CMAKE_READELF}" -d "${_program}" OUTPUT_VARIABLE _dynamic ERROR_QUIET)
  set(${needed} "${_dynamic}" PARENT_SCOPE)
endfunction()

if(NOT CMAKE_READELF)
  return()  # no ELF: macOS has one libc++
endif()
_torchdion_needs_of_programs(_needed)
if(_needed MATCHES "NEEDED" AND NOT _needed MATCHES "libstdc\\+\\+\\.so|libc\\+\\+\\.so")
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=libstdc++.so.6
    OUTPUT_VARIABLE _shared OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT EXISTS "${_shared}")
    find_library(TORCHDION_SHARED_LIBSTDCXX NAMES libstdc++.so.6
      HINTS "/usr/lib/${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu" "/lib/${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu")
    set(_shared "${TORCHDION_SHARED_LIBSTDCXX}")
  endif()
  if(NOT EXISTS "${_shared}")
    message(FATAL_ERROR "${CMAKE_CXX_COMPILER} links libstdc++.a, as it finds no libstdc++.so; beside torch, which has "
      "the shared one, that crashes: name a folder that has libstdc++.so, as in LDFLAGS=-L/usr/lib/gcc/x86_64-linux-gnu/12")
  endif()
  message(STATUS "The compiler finds no libstdc++.so; linking ${_shared}")
  link_libraries("${_shared}")
endif()
