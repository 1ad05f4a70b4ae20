# SPDX-License-Identifier: MIT
# Third-party packages, each for the folders that wrap it. scripts/setup.sh installs them.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(valijson REQUIRED)
pkg_check_modules(HDF5 REQUIRED IMPORTED_TARGET hdf5-serial)
find_package(Eigen3 REQUIRED NO_MODULE)
find_package(CLI11 REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(CURL REQUIRED)
find_package(ZLIB REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)

# SentencePiece, for checkpoints with a tokenizer.model only. Its pkg-config file asks for its training part too.
find_path(OSCAR_SENTENCEPIECE_INCLUDE sentencepiece_processor.h)
find_library(OSCAR_SENTENCEPIECE_LIBRARY sentencepiece)
set(OSCAR_HAS_SENTENCEPIECE OFF)
if(OSCAR_SENTENCEPIECE_INCLUDE AND OSCAR_SENTENCEPIECE_LIBRARY)
  set(OSCAR_HAS_SENTENCEPIECE ON)
  add_library(oscar_libsentencepiece INTERFACE)
  target_include_directories(oscar_libsentencepiece SYSTEM INTERFACE ${OSCAR_SENTENCEPIECE_INCLUDE})
  target_link_libraries(oscar_libsentencepiece INTERFACE ${OSCAR_SENTENCEPIECE_LIBRARY})
else()
  message(STATUS "tokenizer.model: not built (libsentencepiece-dev is not installed)")
endif()

# libtorch from the torch wheel: headers, torch_cpu and c10 only.
file(GLOB torch_candidates ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
if(SKBUILD) # a wheel (pyproject.toml) serves the torch of the environment that it is built in, if there is one
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import os, torch; print(os.path.dirname(torch.__file__), end='')"
    OUTPUT_VARIABLE torch_of_python RESULT_VARIABLE no_torch_of_python ERROR_QUIET)
  if(no_torch_of_python EQUAL 0)
    set(torch_candidates ${torch_of_python})
  endif()
endif()
if(NOT OSCAR_TORCH_ROOT) # it may have come since this folder was configured first
  unset(OSCAR_TORCH_ROOT CACHE)
endif()
set(OSCAR_TORCH_ROOT "${torch_candidates}" CACHE PATH "Folder of the torch wheel or of libtorch (has include/ and lib/)")
if(NOT EXISTS ${OSCAR_TORCH_ROOT}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "libtorch not found (OSCAR_TORCH_ROOT=${OSCAR_TORCH_ROOT}): run scripts/setup.sh")
endif()
add_library(oscar_libtorch INTERFACE)
target_include_directories(oscar_libtorch SYSTEM INTERFACE
  ${OSCAR_TORCH_ROOT}/include ${OSCAR_TORCH_ROOT}/include/torch/csrc/api/include)
target_link_directories(oscar_libtorch INTERFACE ${OSCAR_TORCH_ROOT}/lib)
target_link_libraries(oscar_libtorch INTERFACE torch_cpu c10)

# "2.11": plug-ins that need libtorch load no other (base/plugin.hpp).
file(STRINGS ${OSCAR_TORCH_ROOT}/include/torch/headeronly/version.h torch_version REGEX "define TORCH_VERSION_M[AI][JN]OR ")
string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]*([0-9]+).*" "\\1.\\2" OSCAR_TORCH_VERSION "${torch_version}")

# An installation brings a copy of libtorch; a wheel finds it, and libraries of CUDA, in the packages that it lies beside.
set(OSCAR_PLUGIN_RPATH "$ORIGIN" "$ORIGIN/../../../torch/lib" "$ORIGIN/../../../nvidia/cu13/lib")
if(SKBUILD)
  return()
endif()
# What an installed libtorch needs beside it: its own libraries, and the CUDA runtime parts that libtorch_cpu links.
file(GLOB OSCAR_TORCH_RUNTIME
  ${OSCAR_TORCH_ROOT}/lib/libtorch_cpu.so ${OSCAR_TORCH_ROOT}/lib/libc10.so ${OSCAR_TORCH_ROOT}/lib/libgomp*.so*
  ${OSCAR_TORCH_ROOT}/../nvidia/cu13/lib/libcupti.so.13 ${OSCAR_TORCH_ROOT}/../nvidia/cu13/lib/libcudart.so.13)
install(FILES ${OSCAR_TORCH_RUNTIME} DESTINATION ${CMAKE_INSTALL_LIBDIR}/oscar COMPONENT libtorch)
