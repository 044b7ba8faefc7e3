# Everything lands inside the Python package: _C, lib/, include/, share/cmake/torchdion/, and _build.json, which
# torchdion/__init__.py reads before it loads the library.
include(CMakePackageConfigHelpers)
install(TARGETS torchdion EXPORT torchdionTargets LIBRARY DESTINATION lib)
install(DIRECTORY include/ DESTINATION include)
install(EXPORT torchdionTargets NAMESPACE torchdion:: DESTINATION share/cmake/torchdion)
configure_package_config_file(cmake/torchdionConfig.cmake.in ${PROJECT_BINARY_DIR}/torchdionConfig.cmake
  INSTALL_DESTINATION share/cmake/torchdion)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/torchdionConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/torchdionConfig.cmake ${PROJECT_BINARY_DIR}/torchdionConfigVersion.cmake
  cmake/TorchWheel.cmake DESTINATION share/cmake/torchdion)
configure_file(cmake/build.json.in ${PROJECT_BINARY_DIR}/_build.json @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/_build.json DESTINATION .)
